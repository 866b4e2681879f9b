"""Leaves of a graph: storages and arrays, whose bytes are stored out of band; and which objects of a graph can change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Literal

import torch
from torch.nn.parameter import is_lazy

from ..integrations.registry import is_found_by_id
from .global_hooks import place_of_registry
from .iterators import is_iterator
from .module_reducers import is_dynamic
from .shared_tensors import is_shared
from .torch_reducers import as_array
from .weak_references import is_gone_proxy

Buffer = memoryview
_PLAIN = frozenset({list, dict, set})
_CHANGEABLE = frozenset({*_PLAIN, bytearray, SimpleNamespace, object})  # an `object()` is compared with `is`
_HOLDERS = frozenset({tuple, frozenset})  # of which the items stay the same
_VALUES = frozenset({type(None), bool, int, float, complex, str, bytes, slice, range, BuiltinFunctionType})


@dataclass(frozen=True)
class Leaf:
    """Description of the bytes of one tensor storage or one array.

    Attributes
    ----------
    kind : {"storage", "array"}
    dtype : str
        NumPy's name of the element type; ``"uint8"`` for storages.
    shape : tuple of int
        For a storage its length in bytes.
    device : str
        Type of the device of a storage (``"cpu"``, ``"cuda"``).
    order : {"C", "F"}
        Memory order of an array: row-major or column-major.
    shared : bool
        A storage is in memory that forked processes share (``share_memory_()``).
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"
    order: Literal["C", "F"] = "C"
    shared: bool = False


@dataclass(frozen=True)
class Numbers:
    """Marks a tensor to be written with its bytes although the reader has its storage, as the values are new. Reads as a tensor."""

    tensor: torch.Tensor

    @staticmethod
    def can_hold(tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is dense: strided, on CPU or CUDA, not lazy, quantized, nested, or a conjugate or negative view."""
        plain = tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda") and not is_lazy(tensor)
        return plain and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())


def leaf_of(storage: torch.UntypedStorage) -> tuple[Leaf, Buffer]:
    """Return the leaf of a storage and its bytes, without a copy if it is on the CPU."""
    data = as_array(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()))
    return Leaf("storage", "uint8", (len(data),), storage.device.type, shared=is_shared(storage)), data.data


_NOT_TRACKED = ("builtins", "types", "itertools", "pandas.core.internals.blocks", "pandas.core.internals.managers")
"""Modules of classes whose instances do not change, or belong to a frame: a block that is kept would count as one more reference."""


def trackable(objects: Iterable[object]) -> list[object]:
    """Return those of `objects` that can change in place or whose identity matters, in order.

    Functions, classes and modules that the reader imports are left out, as are temporary objects that pickling creates.
    """
    kept: list[object] = []
    for obj in objects:
        if isinstance(obj, FunctionType | type | ModuleType):
            if is_dynamic(obj):
                kept.append(obj)
        elif is_found_by_id(obj) or place_of_registry(obj) is not None or is_gone_proxy(obj):
            continue
        elif type(obj).__module__ not in _NOT_TRACKED or type(obj) in _CHANGEABLE or isinstance(obj, BaseException) or is_iterator(obj):
            kept.append(obj)
    return kept


class _Held(IntEnum):
    """What a tuple holds: values that are equal anywhere, also objects that the reader has as well, or others too."""

    VALUES = 0
    KNOWN = 1
    OTHERS = 2


def tuples_in(objects: Iterable[object]) -> list[object]:
    """Return the tuples and frozen sets that containers among `objects` hold, with others of `objects` in them.

    They do not change, but a container that does must go on holding the same ones as everything else.
    """
    objects = list(objects)
    known = {id(obj) for obj in objects}
    nested: dict[int, _Held] = {}
    found: dict[int, object] = {}

    def held(items: Iterable[object]) -> _Held:
        most = _Held.VALUES
        for item in items:
            kind = type(item)
            if kind in _VALUES:
                continue
            if kind in _HOLDERS:
                if _VALUES.issuperset(map(type, item)):  # type: ignore[call-overload]  # most of a data set: no call for each
                    continue
                if (what := nested.get(id(item))) is None:
                    what = nested[id(item)] = held(item)  # type: ignore[arg-type]
                    if what is _Held.KNOWN:
                        found[id(item)] = item
            else:
                what = _Held.KNOWN if id(item) in known or issubclass(kind, FunctionType | type | ModuleType) else _Held.OTHERS
            most = max(most, what)
        return most

    for obj in objects:
        kind = type(obj)  # a weak proxy says that it is its target, which may be gone
        if issubclass(kind, dict):
            held(dict.keys(obj))  # type: ignore[arg-type]
            held(dict.values(obj))  # type: ignore[arg-type]
        elif holder := next((base for base in (list, set, deque) if issubclass(kind, base)), None):
            held(holder.__iter__(obj))  # type: ignore[arg-type]
    return list(found.values())
