"""One pickle for a whole graph of objects, with the bulk of it out of band.

Both directions use it: the notebook's values on their way to the engines, and what the cell made of them on the way
back. Everything goes into *one* pickle, so what is shared stays shared (an optimizer's parameters *are* the model's).
The bytes of tensors and arrays are set aside as *leaves*: they can then be addressed by content, mapped instead of
copied, and left out when the other side already has them.

pickle's own out-of-band buffers do this for arrays but not for tensors, whose storages pickle through ``torch.save``;
persistent ids do it for both, and let a reader give back the same object for the same leaf.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from IPython import get_ipython
from IPython.core.autocall import ExitAutocall
from IPython.core.interactiveshell import InteractiveShell
from torch.optim import Optimizer
from torch.utils.data import DataLoader

Buffer = memoryview

_ATOMIC = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, slice, range, ModuleType, BuiltinFunctionType)


@dataclass(frozen=True)
class Leaf:
    """The bytes of one tensor storage or one array.

    Attributes
    ----------
    kind : {"storage", "array"}
    dtype : str
        NumPy's name of the element type; ``"uint8"`` for storages.
    shape : tuple of int
        For a storage its length in bytes.
    device : str
        Type of the device that held a storage (``"cpu"``, ``"cuda"``).
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"


@dataclass
class Packed:
    """A pickled graph: the `stream`, and the bytes of each of its `leaves` in order."""

    stream: bytes
    leaves: list[Leaf] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)


class Packer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Pickles graphs of objects, one after the other, with a memo in common.

    Parameters
    ----------
    namespace : dict
        The globals of the code that made the objects. It is written as a reference to the reader's own namespace, so functions that
        were defined in it have the reader's namespace as their globals, on whichever side that is.
    known : sequence of object
        Objects that the reader already has, in the reader's order. They are written as references.
    """

    def __init__(self, *, namespace: dict[str, Any], known: Sequence[object] = ()) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.leaves: list[Leaf] = []
        self.buffers: list[Buffer] = []
        self.seen: list[object] = []
        self._seen_ids: set[int] = set()
        self._leaf_index: dict[tuple[str, int], int] = {}
        self._keep: list[object] = []
        self._namespace = namespace
        self._known = {id(obj): index for index, obj in enumerate(known)}
        # cloudpickle gives functions a fresh dict of globals, shared by all functions of one module: start it
        # with the notebook's own dict, which `persistent_id` turns into a reference.
        self.globals_ref[id(namespace)] = namespace

    def packed(self) -> Packed:
        """Return everything pickled so far."""
        return Packed(self._stream.getvalue(), self.leaves, self.buffers)

    def persistent_id(self, obj: object) -> tuple[str, Any] | None:
        """Return a reference where `obj` is not written itself. Sees every object of the graph once or more."""
        kind = type(obj)
        if kind in _ATOMIC:
            return None
        if isinstance(obj, InteractiveShell):
            return ("shell", None)  # magics and `!commands` in a cell are calls of it
        if isinstance(obj, ExitAutocall):
            return ("exit", None)
        if obj is self._namespace:
            return ("namespace", None)
        known = self._known.get(id(obj))
        if known is not None:
            return ("known", known)
        if kind is torch.storage.TypedStorage:
            return ("storage", (self._storage(obj._untyped_storage), obj.dtype))  # type: ignore[attr-defined]
        if kind is torch.UntypedStorage:
            return ("storage", (self._storage(obj), None))  # type: ignore[arg-type]
        if kind is np.ndarray and obj.dtype.hasobject is False and obj.dtype.names is None:  # type: ignore[attr-defined]
            return ("array", self._array(obj))  # type: ignore[arg-type]
        if id(obj) not in self._seen_ids:
            self._seen_ids.add(id(obj))
            self.seen.append(obj)
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is written, where its own way does not do."""
        state = portable_state(obj)
        if state is not None:
            reduced = list(obj.__reduce_ex__(4))
            reduced[2] = state
            return tuple(reduced)
        return super().reducer_override(obj)

    def _storage(self, storage: torch.UntypedStorage) -> int:
        def make() -> tuple[Leaf, Buffer]:
            on_cpu = storage.cpu()
            self._keep.append((storage, on_cpu))
            data = torch.empty(0, dtype=torch.uint8).set_(on_cpu).numpy()
            return Leaf("storage", "uint8", (len(data),), storage.device.type), data.data

        return self._leaf(("storage", storage._cdata), make)

    def _array(self, array: np.ndarray[Any, Any]) -> int:
        def make() -> tuple[Leaf, Buffer]:
            data = np.ascontiguousarray(array)
            self._keep.append(array)
            return Leaf("array", array.dtype.str, array.shape), data.reshape(-1).view(np.uint8).data

        # Arrays are also copied back in place, so each is seen as an object of its own.
        if id(array) not in self._seen_ids:
            self._seen_ids.add(id(array))
            self.seen.append(array)
        return self._leaf(("array", id(array)), make)

    def _leaf(self, key: tuple[str, int], make: Callable[[], tuple[Leaf, Buffer]]) -> int:
        index = self._leaf_index.get(key)
        if index is None:
            leaf, buffer = make()
            index = self._leaf_index[key] = len(self.leaves)
            self.leaves.append(leaf)
            self.buffers.append(buffer)
        return index


class Unpacker(pickle.Unpickler):
    """Reads what a :class:`Packer` wrote, graph by graph in the same order.

    Parameters
    ----------
    packed : Packed
        Buffers must be writable where the objects are to be changed in place; they are used without a copy.
    namespace : dict
        Globals of the functions that are read.
    known : sequence of object
        What the packer's `known` stood for, in the same order.
    device_for : callable
        Maps the type of the device that held a storage to the device that shall hold it here.
    """

    def __init__(
        self,
        packed: Packed,
        *,
        namespace: dict[str, Any],
        known: Sequence[object] = (),
        device_for: Callable[[str], torch.device] = torch.device,
    ) -> None:
        super().__init__(io.BytesIO(packed.stream))
        self._packed = packed
        self._namespace = namespace
        self._known = known
        self._device_for = device_for
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: tuple[str, Any]) -> object:
        """Return what a reference stands for."""
        kind, value = pid
        if kind == "namespace":
            return self._namespace
        if kind == "known":
            return self._known[value]
        if kind == "shell":
            return get_ipython()
        if kind == "exit":
            return exit  # the shell's own would end the process and not the cell
        if kind == "array":
            return self._leaf(value)
        index, dtype = value
        storage = self._leaf(index)
        return storage if dtype is None else torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def _leaf(self, index: int) -> Any:
        if index not in self._made:
            leaf, buffer = self._packed.leaves[index], self._packed.buffers[index]
            if leaf.kind == "array":
                flat = np.frombuffer(buffer, dtype=np.dtype(leaf.dtype)) if buffer.nbytes else np.empty(0, np.dtype(leaf.dtype))
                self._made[index] = flat.reshape(leaf.shape)
            else:
                device = self._device_for(leaf.device)
                if buffer.nbytes:
                    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
                else:
                    storage = torch.UntypedStorage(0)
                if device.type != "cpu":
                    storage = torch.empty(0, dtype=torch.uint8).set_(storage).to(device).untyped_storage()
                self._made[index] = storage
        return self._made[index]


def portable_state(obj: object) -> dict[str, Any] | None:
    """Return the attributes of `obj` that mean something in another process, where its own pickling gets that wrong.

    ``None`` for all objects that need no such care.
    """
    if isinstance(obj, DataLoader):
        # The iterator of persistent workers belongs to this process; the other side starts its own.
        return {**obj.__dict__, "_iterator": None}
    if isinstance(obj, Optimizer):
        # Optimizer.__getstate__ knows three attributes only: one of the user's own would lose all others. `step` is
        # an instance attribute where a scheduler has wrapped it, with a bound method of this process.
        return {key: value for key, value in obj.__dict__.items() if key != "step"}
    return None


def is_dynamic(obj: object) -> bool:
    """Return whether cloudpickle sends this function or class by value."""
    if isinstance(obj, FunctionType | type):
        return not cloudpickle.cloudpickle._should_pickle_by_reference(obj)
    return False


def trackable(objects: Iterable[object]) -> list[object]:
    """Return those of `objects` that can change in place or whose identity matters, in order.

    Functions and classes that the other side imports for itself are left out, and so are the small helpers
    that pickling makes on the way.
    """
    kept: list[object] = []
    for obj in objects:
        if isinstance(obj, FunctionType | type):
            if is_dynamic(obj):
                kept.append(obj)
        elif type(obj).__module__ not in ("builtins", "types") or type(obj) in (list, dict, set, bytearray):
            kept.append(obj)
    return kept
