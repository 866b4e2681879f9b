"""Save, compare and restore state that a model keeps outside of what PyTorch registers, by value.

A call that is repeated or only made to learn from must leave no trace, whatever object holds it. A model whose kept state depends on its
samples needs the full batch.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...serialization.copy_restore import Contents, restore
from ...serialization.item_restore import bytes_of, is_frame, items_of
from ...serialization.python_reducers import SlotValues, attribute_holders
from ..tensor.placement_types import GlobalTensor
from .containers import MAPPINGS, copy_of, is_same, refill
from .holders import Holder, ModuleAttributes, Variables
from .reached import Reached

LARGE = 1 << 26
"""Most bytes of a tensor or array that is copied for a call; of larger tensors only version counters are compared."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEPTH, _MOST = 6, 10_000


class Change(NamedTuple):
    """A change made by a call.

    Attributes
    ----------
    what : object
        A holder, a tensor, an array, or an object that holds bytes, text or a table.
    keys : list, optional
        The changed attributes, variables or keys of a mapping; ``None``: all of it.
    """

    what: Any
    keys: list[Any] | None = None

    def values(self) -> Iterator[Any]:
        """Yield the current values."""
        if self.keys is not None:
            yield from (self.what.get(key) for key in self.keys)
        elif isinstance(self.what, list | set | deque):
            yield from list(self.what)
        else:
            yield self.what

    def names(self) -> list[tuple[int, Any]]:
        """Return identifiers of the change: pairs of the owner's id and a key, or ``None`` for all keys."""
        owner = id(owner_of(self.what))
        return [(owner, None)] if self.keys is None else [(owner, key) for key in self.keys]


def owner_of(holder: Any) -> Any:
    """Return the object whose values a holder wraps; wrappers are created anew for each walk."""
    if isinstance(holder, ModuleAttributes | Variables):
        return holder.owner
    return holder.obj if isinstance(holder, SlotValues) else holder


class CannotRestore(Exception):
    """A tensor too large to be copied was written to."""


class State:
    """The current values of all that a model reaches.

    Parameters
    ----------
    reached : Reached
    leave_out : set of int
        Ids of objects to skip, because other code tracks them.
    """

    def __init__(self, reached: Reached, leave_out: frozenset[int] = frozenset()) -> None:
        self._holders: list[tuple[Holder, Any]] = [
            (holder, copy_of(holder)) for holder in reached.holders if id(owner_of(holder)) not in leave_out
        ]
        self._tensors = [(tensor, _version(tensor), _copy(tensor)) for tensor in reached.tensors]
        self._arrays = [(array, array.copy() if array.nbytes <= LARGE else None) for array in reached.arrays]
        self._others = [(other, items_of(other)) for other in reached.others]

    def changes(self) -> list[Change]:
        """Return what has changed since."""
        found: list[Change] = []
        for holder, before in self._holders:
            if is_same(holder, before):
                continue
            if isinstance(holder, MAPPINGS):
                now = copy_of(holder)
                keys = [key for key in {**before, **now} if not is_value(now.get(key, before), before.get(key, holder))]
                if keys or (isinstance(holder, dict) and [*map(id, before)] != [*map(id, now)]):  # or ordered anew
                    found.append(Change(holder, keys or None))
            else:
                found.append(Change(holder))
        found += [Change(tensor) for tensor, version, copy in self._tensors if _was_written(tensor, version, copy)]
        found += [Change(array) for array, copy in self._arrays if copy is not None and not same_arrays(array, copy)]
        found += [Change(other) for other, items in self._others if not _are_same_items(items_of(other), items)]
        return found

    def restore(self) -> None:
        """Restore the saved values.

        Raises
        ------
        CannotRestore
        """
        for holder, before in self._holders:
            refill(holder, before)
        for tensor, version, copy in self._tensors:
            if _was_written(tensor, version, copy):
                if copy is None:
                    raise CannotRestore
                with torch.no_grad():
                    if tensor.shape == copy.shape:
                        tensor.data.copy_(copy)  # does not increase versions: graphs from before the call may have saved it
                    else:
                        tensor.data = copy
        for array, numbers in self._arrays:
            if numbers is not None:
                restore_array(array, numbers)
        for other, items in self._others:
            if not _are_same_items(items_of(other), items):
                restore(other, Contents(items))


def fingerprint(changes: Iterable[Change]) -> str:
    """Return a digest of the changed values, equal exactly when the values are equal."""
    text = repr([[_digest(value, _DEPTH) for value in change.values()] for change in changes])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def hold_tensors(changes: Sequence[Change]) -> bool:
    """Return whether a call has put a tensor into a holder."""
    holders = [change for change in changes if not isinstance(change.what, torch.Tensor | np.ndarray)]
    return any(_holds_tensor(value, 3) for change in holders for value in change.values())


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, (*PLAIN, nn.Parameter, nn.Module)):
        return False
    if any(isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter) for leaf in pytree.tree_leaves(value)):
        return True
    return depth > 0 and any(_holds_tensor(item, depth - 1) for held in attribute_holders(value) for item in held.values())


def _digest(value: Any, depth: int) -> Any:
    if isinstance(value, PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, torch.Tensor):
        if isinstance(value, GlobalTensor) or value.layout != torch.strided:
            return "tensor", tuple(value.shape)
        plain = value.detach().cpu()
        return "tensor", tuple(plain.shape), str(plain.dtype), hashlib.blake2b(_bytes(plain), digest_size=16).hexdigest()
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            return "array", value.shape, str(value.dtype), hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()
        value = value.tolist()
    kind = type(value).__name__
    if depth == 0 or isinstance(value, nn.Module):
        return kind
    if isinstance(value, MAPPINGS):
        return kind, [(_digest(key, depth - 1), _digest(item, depth - 1)) for key, item in list(value.items())[-_MOST:]]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(_digest(item, depth - 1)) for item in value)
    if isinstance(value, list | tuple | deque):
        return kind, len(value), [_digest(item, depth - 1) for item in list(value)[-_MOST:]]
    items = items_of(value)
    if items is not None and not callable(value):
        return kind, repr(items)
    return kind, [(_digest(dict(held), depth - 1)) for held in attribute_holders(value)]


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes_of(tensor).numpy().tobytes() if tensor.numel() else b""


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _copy(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta or tensor.nbytes > LARGE:
        return None
    return tensor.detach().clone()


def _was_written(tensor: torch.Tensor, version: int, copy: torch.Tensor | None) -> bool:
    if copy is None:
        return _version(tensor) != version
    return not same(tensor, copy)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape and values; NaNs are equal."""
    left = left.detach()
    if left.shape != right.shape:
        return False
    return torch.equal(left, right) or (left.is_floating_point() and torch.allclose(left, right, rtol=0.0, atol=0.0, equal_nan=True))


def same_arrays(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays have the same shape, dtype and bytes, or hold the same objects."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype.hasobject:
        return all(a is b for a, b in zip(left.flat, right.flat, strict=True))
    return left.tobytes() == right.tobytes()


def _are_same_items(left: Any, right: Any) -> bool:
    return bool(left.equals(right)) if is_frame(left) else bool(left == right)


def is_value(now: Any, before: Any) -> bool:
    """Return whether `now` is `before`, or equals it, for numbers, strings and tuples of these."""
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if isinstance(now, PLAIN):
        return bool(now == before)
    return isinstance(now, tuple) and len(now) == len(before) and all(map(is_value, now, before))


def restore_array(array: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> None:
    """Give an array the values of its copy, and its shape."""
    if same_arrays(array, numbers):
        return
    if array.shape != numbers.shape:
        array.resize(numbers.shape, refcheck=False)
    array[...] = numbers
