"""Pickle a whole graph of objects as one stream, with the data of tensors and arrays out of band; `unpickler` reads it.

Both directions use it: the notebook's values to the engines, and the cell's results back. Everything goes into *one* pickle, so shared
objects stay shared (an optimizer's parameters *are* the model's). The bytes of tensors and arrays are *leaves*: they can be addressed by
content, mapped instead of copied, and left out if the reader already has them.

pickle's out-of-band buffers handle arrays but not tensors, whose storages pickle through ``torch.save``. Persistent ids handle both, and
let the reader return one object for one leaf.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Literal

import cloudpickle
import numpy as np
import torch
from IPython.core import interactiveshell
from IPython.core.autocall import ExitAutocall
from IPython.core.interactiveshell import InteractiveShell

from ..system.interpreter import deep_recursion
from .array_windows import Region, Windows
from .constant_texts import constant_texts
from .identities import reference_of
from .known_memory import KnownMemory, place_of
from .leaves import _PLAIN, Buffer, Leaf, Numbers, leaf_of
from .linked_attributes import linked_dict
from .module_reducers import ModuleName
from .python_reducers import reduced_code, with_annotations
from .reducers import reduced
from .shared_tensors import is_shared, shared_tensor
from .staying_attributes import release_written
from .weak_references import PROXIES

Reference = tuple[str, Any]

_ATOMIC = frozenset(
    {type(None), bool, int, float, complex, str, bytes, tuple, frozenset, slice, range, BuiltinFunctionType, pickle.PickleBuffer, *PROXIES}
)
_REFERRED = frozenset({str, tuple, frozenset})  # those of `_ATOMIC` of which some are known or a library's
NOTEBOOKS_OPEN = getattr(interactiveshell, "_modified_open", open)  # IPython 8 and later replace `open` in notebooks
_NUMBERS = "biufcmMSU"  # kinds of NumPy dtypes whose bytes are the whole value


@dataclass
class Packed:
    """A pickled graph: the stream, its leaves, and their bytes in order; `elsewhere`: index of a leaf without bytes → its number."""

    stream: bytes
    leaves: list[Leaf] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    elsewhere: dict[int, int] = field(default_factory=dict)


class Packer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Pickle graphs of objects, one after the other, with a shared memo.

    Parameters
    ----------
    namespace : dict
        Globals of the code that made the objects. It is written as a reference to the reader's namespace, so that functions defined in it
        have the reader's namespace as their globals.
    known : sequence of object
        Objects that the reader already has, in the reader's order. They are written as references.
    modules : iterable of module
        Modules that are written by value (register them with cloudpickle too): their functions have the written module's dict as globals.
    words : collection of str
        Attributes that the code uses. For a module written by name, submodules of these names are imported with it.
    storages : mapping of int to int
        Address of a storage that the reader has → index of a tensor in `known` with this storage. Tensors that share it are written as
        such, and share it at the reader.
    elsewhere : mapping of int to int
        Address of a storage whose bytes the reader gets otherwise → its number.
    windows : Windows, optional
        Arrays and tensors that share memory, as far as known.
    """

    def __init__(
        self,
        *,
        namespace: dict[str, Any],
        known: Sequence[object] = (),
        storages: Mapping[int, int] | None = None,
        modules: Iterable[ModuleType] = (),
        words: Collection[str] = (),
        elsewhere: Mapping[int, int] | None = None,
        windows: Windows | None = None,
    ) -> None:
        self._windows = windows
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.leaves: list[Leaf] = []
        self.buffers: list[Buffer] = []
        self.seen: list[object] = []
        self._leaf_index: dict[int, int] = {}
        self._window_leaves: dict[tuple[int, int], int] = {}
        self._known_memory = KnownMemory(known, storages or {})
        self._keep: list[object] = []
        self._cells: dict[int, tuple[CellType, CellType]] = {}  # closure cells by id, each with the empty cell written in its place
        self._words = words
        self._storages = storages or {}
        self._elsewhere = elsewhere or {}
        self._left_out: dict[int, int] = {}
        # What persistent_id returns for an object seen before; None: the object itself. Most objects cost only this lookup.
        self._references: dict[int, Reference | None] = {id(obj): ("known", index) for index, obj in enumerate(known)}
        self._references.update({id(text): ("text", place) for place, text in constant_texts()})
        # cloudpickle gives functions a fresh dict of globals, shared by all functions of one module: start it
        # with the code's own dict, which is written as a reference.
        self._references[id(namespace)] = ("namespace", None)
        self.globals_ref[id(namespace)] = namespace
        for index, obj in enumerate(known):
            if isinstance(obj, ModuleType):
                self._globals(obj, ("known dict", index))
            elif (own := linked_dict(obj)) is not None:
                self._references.setdefault(id(own), ("known dict", index))
        for module in modules:
            self._globals(module, ("globals", module.__name__))

    def _globals(self, module: ModuleType, reference: Reference) -> None:
        self._references[id(vars(module))] = reference
        self.globals_ref[id(vars(module))] = vars(module)

    def refer(self, references: Mapping[int, Reference | None]) -> None:
        """Write these references for objects with these ids; ``None``: write the object itself, and do not list it in `seen`."""
        self._references.update({key: reference for key, reference in references.items() if key not in self._references})

    def dump(self, obj: Any) -> None:
        """Pickle another graph."""
        with deep_recursion():
            super().dump(obj)

    def packed(self) -> Packed:
        """Return everything pickled so far."""
        release_written()
        return Packed(self._stream.getvalue(), self.leaves, self.buffers, self._left_out)

    def persistent_id(self, obj: Any) -> Reference | None:
        """Return a reference if `obj` is not written itself. pickle calls this for every object, perhaps repeatedly."""
        kind = type(obj)
        if kind in _ATOMIC:
            return reference_of(obj) if kind is int else self._references.get(id(obj)) if kind in _REFERRED else None
        key = id(obj)
        if key in self._references:
            return self._references[key]
        reference: Reference | None = None
        if kind not in _PLAIN:
            # Storages come in short-lived wrappers, so their ids are not remembered.
            if kind is torch.storage.TypedStorage:
                return self._storage_or_known(obj._untyped_storage, obj.dtype)
            if kind is torch.UntypedStorage:
                return self._storage_or_known(obj, torch.uint8)
            if kind is Numbers:
                tensor = obj.tensor
                place = tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
                return "numbers", (self._storage(tensor.untyped_storage()), *place)
            if kind is ModuleName:
                return ("module", str(obj))
            if isinstance(obj, InteractiveShell):
                return ("shell", None)  # magics and `!commands` in a cell are calls of it
            if isinstance(obj, ExitAutocall):
                return ("exit", None)
            if obj is NOTEBOOKS_OPEN:
                return ("open", None)  # it claims to be `io.open`, and cloudpickle would send it by value
            if kind is torch.device:
                reference = ("device", str(obj))
            if kind is np.ndarray and obj.dtype.itemsize and shared_tensor(obj) is None:
                reference = self._window(obj) or (("array", (self._array(obj), _gaps(obj))) if obj.dtype.kind in _NUMBERS else None)
        self._references[key] = reference
        self.seen.append(obj)
        return reference

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduce value of `obj` if its own does not suffice."""
        if type(obj) is CodeType:
            return reduced_code(obj)
        found = reduced(obj, self._words)
        if found is not NotImplemented:
            return found
        return super().reducer_override(with_annotations(obj) if type(obj) is FunctionType else obj)

    def _function_getnewargs(self, func: FunctionType) -> tuple[Any, ...]:
        """Return cloudpickle's arguments of a function, with closure cells such that functions that share a variable still share it."""
        *others, closure = super()._function_getnewargs(func)
        if closure is not None:  # the cell contents are part of the state, as they may refer to the function
            closure = tuple(self._cells.setdefault(id(cell), (cell, CellType()))[1] for cell in func.__closure__ or ())
        return (*others, closure)

    def _storage_or_known(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> Reference:
        known = self._storages.get(storage._cdata)
        if known is not None:
            return "known storage", (known, dtype)
        if self._windows is not None:
            if reference := self._known_memory.storage(storage):
                return reference[0], (dtype, *reference[1])
            if region := self._windows.region_of_storage(storage):
                return "storage window", (dtype, self._region(region), storage.data_ptr() - region.begin, storage.nbytes())
        return "storage", (self._storage(storage), dtype)

    def _storage(self, storage: torch.UntypedStorage) -> int:
        index = self._leaf_index.get(storage._cdata)
        if index is None:
            self._keep.append(storage)
            number = self._elsewhere.get(storage._cdata)
            if number is None:
                index = self._add(*leaf_of(storage))
            else:
                leaf = Leaf("storage", "uint8", (storage.nbytes(),), storage.device.type, shared=is_shared(storage))
                index = self._add(leaf, memoryview(b""))
                self._left_out[index] = number
            self._leaf_index[storage._cdata] = index
        return index

    def _window(self, array: np.ndarray[Any, Any]) -> Reference | None:
        if self._windows is None or self._windows.has_left(array):
            return None
        if reference := self._known_memory.array(array):
            return reference
        region = self._windows.region_of(array)
        return None if region is None else ("window", (self._region(region), *place_of(array, region.begin)))

    def _region(self, region: Region) -> int:
        if region.storage is not None:
            return self._storage(region.storage)
        index = self._window_leaves.get((region.begin, region.end))
        if index is None:
            index = self._window_leaves[region.begin, region.end] = self._array(region.memory())
        return index

    def _array(self, array: np.ndarray[Any, Any]) -> int:
        order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        data = np.ascontiguousarray(array.T if order == "F" else array)
        buffer = data.reshape(-1).view(np.uint8).data
        return self._add(Leaf("array", array.dtype.str, array.shape, order=order), buffer)

    def _add(self, leaf: Leaf, buffer: Buffer) -> int:
        self.leaves.append(leaf)
        self.buffers.append(buffer)
        return len(self.leaves) - 1


def _gaps(array: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """Return the strides of an array that is written without its gaps, ``None`` if it has none."""
    return None if array.flags.c_contiguous or array.flags.f_contiguous else array.strides
