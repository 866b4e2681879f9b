"""Detect that a later call of a model starts to keep state of its samples: from the second epoch on, in every tenth call.

Comparing all values would take longer than a small model's call. Therefore only cheap traces of a change are compared: versions of
tensors, identities of the objects in holders, bytes of small arrays. Unlike after a first call, such a change cannot be undone here and
other ranks may not see it. The run then restarts from its last snapshot with the model known to be open.
"""

from __future__ import annotations

import dis
import io
import zlib
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn

from ...analysis.code_objects import everything
from ...serialization.item_restore import is_frame
from ..code_inspection import model_uses
from ..module_tree import modules_in, num_registered
from ..tensor.placement_types import GlobalTensor
from .containers import MAPPINGS
from .holders import MODULES_OWN, ModuleAttributes, is_torchs
from .reached import Reached, reached_from
from .state import LARGE, PLAIN, is_value, owner_of, same

_SMALL = 1 << 16  # bytes up to which an array is compared byte by byte
_MOST_ITEMS = 4096  # up to which each item of a container is compared
_version = attrgetter("_version")
_PAST_A_TENSOR = frozenset(("data", "numpy"))
_ABSENT = object()


class Watch:
    """Detects changes by later calls of a model that its first call did not make.

    Parameters
    ----------
    model : nn.Module
    ignored : iterable of int
        Ids of the buffers in which PyTorch's normalization layers keep statistics.
    accepted : set
        Changes of the first call that do not depend on samples, as :meth:`Change.names` returns them.
    """

    def __init__(self, model: nn.Module, ignored: Iterable[int], accepted: set[tuple[int, Any]]) -> None:
        self._model, self._ignored, self._accepted = model, frozenset(ignored), accepted
        self._take(reached_from(model))

    def _take(self, reached: Reached) -> None:
        self._registered = num_registered()
        parts = modules_in(self._model)
        registered = [t for part in parts for t in (*part._parameters.values(), *part._buffers.values()) if t is not None]
        self._fixed = [t for t in (*registered, *reached.tensors) if id(t) not in self._ignored and not t.is_inference()]
        self._tensors = self._fixed
        self._by_value = self._uncounted(parts, registered, reached)
        small = [array for array in reached.arrays if array.nbytes <= _SMALL and not array.dtype.hasobject]
        large = [array for array in reached.arrays if _SMALL < array.nbytes <= LARGE and not array.dtype.hasobject]
        self._others, self._iterators = reached.others, reached.iterators
        self._arrays = small + (large if large and model_uses(self._model, _writes) else [])
        holders = [holder for holder in reached.holders if not (isinstance(holder, ModuleAttributes) and holder.is_torchs)]
        self._holders = [holder for holder in holders if len(holder) <= _MOST_ITEMS]
        self._sized = [holder for holder in holders if len(holder) > _MOST_ITEMS]
        self._views: list[Any] = [_view(holder) for holder in self._holders]
        self._held = list(map(list, self._views))  # after the last call
        self._began = self._held  # before this one

    def _uncounted(self, parts: Iterable[nn.Module], registered: Sequence[torch.Tensor], reached: Reached) -> list[torch.Tensor]:
        """Return small tensors whose versions may miss writes: C++ code writes to observers' buffers, user code to ``.data``."""
        theirs = [t for part in parts if is_torchs(part) for t in part._buffers.values() if t is not None]
        passes = model_uses(self._model, lambda _, names: not _PAST_A_TENSOR.isdisjoint(names))
        users = {id(t): t for t in (*registered, *reached.tensors)}.values() if passes else ()
        found = [t for t in (*theirs, *users) if id(t) not in self._ignored and t.nbytes <= _SMALL]
        return [t for t in found if t.layout == torch.strided and not t.is_meta]

    def start(self) -> None:
        """Record the state before a call."""
        if self._registered != num_registered():
            self._take(reached_from(self._model))
        if self._views:
            self._began = list(map(list, self._views))
            self._follow()
        self._versions = list(map(_version, self._tensors))
        if self._sized:
            self._sizes = [len(holder) for holder in self._sized]
        if self._by_value:
            self._values = [tensor.detach().clone() for tensor in self._by_value]
        if self._others:
            self._marks = list(map(_mark, self._others))
        if self._arrays:
            self._bytes = [_bytes(array) for array in self._arrays]

    def _follow(self) -> None:
        """Track objects that holders have received since the last call, as they may be tensors or hold state themselves."""
        new: list[Any] = []
        for now, before in zip(self._began, self._held, strict=True):
            if len(now) != len(before) or not all(map(is_, now, before)):
                known = set(map(id, before))
                new += [value for value in now if id(value) not in known and not isinstance(value, PLAIN)]
        if any(not isinstance(value, torch.Tensor | nn.Module) for value in new):
            self._take(reached_from(self._model))
        elif new:
            fixed = set(map(id, self._fixed))
            loose = [value for now in self._began for value in now if isinstance(value, torch.Tensor) and id(value) not in fixed]
            self._tensors = [*self._fixed, *(t for t in loose if not isinstance(t, GlobalTensor) and not t.is_inference())]

    def changed(self, *, anything: bool = False) -> bool:
        """Return whether the call changed state that is not accepted, or, with `anything`, any state that will not be restored."""
        accepted: set[tuple[int, Any]] = set() if anything else self._accepted
        found = anything and bool(self._iterators)  # cannot be compared
        versions = list(map(_version, self._tensors))
        if versions != self._versions:
            pairs = zip(self._tensors, versions, self._versions, strict=True)
            found = any(now != before and (id(tensor), None) not in accepted for tensor, now, before in pairs)
        if self._views:
            self._held = list(map(list, self._views))
            for holder, held, now in zip(self._holders, self._began, self._held, strict=True):
                if anything and isinstance(holder, ModuleAttributes):
                    continue  # these are restored
                if len(now) != len(held) or not all(map(is_, now, held)):
                    found = found or _is_new(holder, held, now, accepted)
        if self._by_value:
            found = found or any(
                (id(tensor), None) not in accepted and not same(tensor, before)
                for tensor, before in zip(self._by_value, self._values, strict=True)
            )
        if self._sized:
            found = found or any(
                len(holder) != size and (id(owner_of(holder)), None) not in accepted
                for holder, size in zip(self._sized, self._sizes, strict=True)
            )
        if self._others:
            found = found or any(
                _mark(other) != before and (id(other), None) not in accepted
                for other, before in zip(self._others, self._marks, strict=True)
            )
        if self._arrays:
            found = found or any(
                _bytes(array) != before and (id(array), None) not in accepted
                for array, before in zip(self._arrays, self._bytes, strict=True)
            )
        return found


def _view(holder: Any) -> Any:
    if isinstance(holder, ModuleAttributes):
        holder = holder.owner
    if isinstance(holder, dict):
        return dict.values(holder)
    return holder.values() if isinstance(holder, MAPPINGS) else holder


def _keys(holder: Any) -> list[Any]:
    """Return the keys of a mapping in the order of :func:`_view`'s values, which may differ from the order of an ``OrderedDict``."""
    return list(dict.keys(holder) if isinstance(holder, dict) else holder)


def _is_new(holder: Any, held: Sequence[Any], now: Sequence[Any], accepted: set[tuple[int, Any]]) -> bool:
    owner = id(owner_of(holder))
    if (owner, None) in accepted:
        return False
    of_module = isinstance(holder, ModuleAttributes)
    keys = list(holder.owner) if of_module else _keys(holder) if isinstance(holder, MAPPINGS) else []
    if len(keys) != len(now) or len(now) < len(held):
        return True
    before = [*held, *[_ABSENT] * (len(now) - len(held))]  # new entries are last
    changed = [key for key, new, old in zip(keys, now, before, strict=True) if not is_value(new, old) and (owner, key) not in accepted]
    if not of_module:
        return bool(changed)
    # Tensors set as module attributes are noticed by `ShardedCall.set_attribute`.
    return any(key not in MODULES_OWN and not isinstance(holder.owner[key], torch.Tensor) for key in changed)


def _writes(code: CodeType, _names: set[str]) -> bool:
    """Return whether `code` contains instructions that may write to an array."""
    instructions = [instruction for part in everything(code) for instruction in dis.get_instructions(part)]
    return any(i.opname == "STORE_SUBSCR" or (i.opname == "BINARY_OP" and i.argrepr.endswith("=")) for i in instructions)


def _mark(other: Any) -> Any:
    """Return a cheap value that changes when an object that holds bytes, text or a table changes."""
    if isinstance(other, io.StringIO | io.BytesIO):
        return other.tell()
    if is_frame(other):
        return (other.shape, *map(id, other._mgr.arrays))
    return bytes(other)


def _bytes(array: np.ndarray[Any, Any]) -> Any:
    return array.tobytes() if array.nbytes <= _SMALL else zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
