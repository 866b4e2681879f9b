"""Read what a :class:`.Packer` has written, graph by graph; references become this process's objects."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from IPython import get_ipython

from ..analysis.imports import brought
from .array_windows import storage_window, window
from .constant_texts import text_at
from .identities import found_by_name, read_id
from .known_memory import came_without_gaps, known_arrays_storage, known_arrays_window
from .library_objects import LIBRARYS
from .library_placing import Placing
from .pickler import NOTEBOOKS_OPEN, Packed, Reference
from .shared_tensors import in_shared_memory

_SMALL = 1 << 16  # bytes up to which a storage is copied into memory of its own, which `resize_` can enlarge (buffers of observers)

_OF_NOTEBOOKS = {
    "open": NOTEBOOKS_OPEN,
    "exit": sys.exit,  # IPython's would end the process, and Python's `exit` would close stdin
}


class Unpacker(pickle.Unpickler):
    """Read what a :class:`.Packer` wrote, graph by graph in the same order.

    Parameters
    ----------
    packed : Packed
        Buffers are used without a copy; they must be writable if the objects are to be changed in place.
    namespace : dict
        Globals of the functions that are read.
    known : sequence of object
        The reader's equivalents of the packer's `known`, in the same order.
    device_for : callable
        Maps the device type of a storage at the writer to the device for it here.
    module_for : callable
        Returns the module for the name of one that is written by value.
    """

    def __init__(
        self,
        packed: Packed,
        *,
        namespace: dict[str, Any],
        known: Sequence[object] = (),
        device_for: Callable[[str], torch.device] = torch.device,
        module_for: Callable[[str], ModuleType] = ModuleType,
    ) -> None:
        self.file = io.BytesIO(packed.stream)
        super().__init__(self.file)
        self._packed = packed
        self._namespace = namespace
        self._known = known
        self._device_for, self._module_for = device_for, module_for
        self._made: dict[int, Any] = {}
        self._windows: dict[tuple[Any, ...], torch.UntypedStorage] = {}
        self._arrays: dict[int, tuple[Reference, np.ndarray[Any, Any]]] = {}  # by id of the reference, of which each array has its own
        self._devices: dict[Any, torch.device] = {}
        self._modules: dict[str, ModuleType] = {}
        self._librarys = Placing()

    def load(self) -> Any:
        """Return the next graph."""
        builtins = self._namespace.get("__builtins__")
        try:
            found = super().load()
            self._librarys.fill()
            return found
        finally:
            if builtins is not None:  # cloudpickle's functions overwrite it
                self._namespace["__builtins__"] = builtins

    def follow(self, other: Unpacker) -> None:
        """Continue with the objects that `other` has made."""
        self._made, self._windows, self._devices = other._made, other._windows, other._devices
        self._arrays = other._arrays
        self._modules, self._librarys = other._modules, other._librarys

    def find_class(self, module: str, name: str) -> Any:
        """Return what has a name in a module, which is imported if need be."""
        with brought() if module not in sys.modules else nullcontext():
            return found_by_name(module, name) or super().find_class(module, name)

    def persistent_load(self, pid: Reference) -> object:
        """Return what a reference stands for."""
        kind, value = pid
        if kind == "namespace":
            return self._namespace
        if kind == LIBRARYS:
            return self._librarys.object_at(*value)
        if kind == "known":
            return self._known[value]
        if kind == "known dict":
            return vars(self._known[value])
        if kind in ("module", "globals"):
            if (module := self._modules.get(value)) is None:
                module = self._modules[value] = self._module_for(value)
            return module if kind == "module" else vars(module)
        if kind == "shell":
            return get_ipython()
        if kind == "id":
            return read_id(value)
        if kind in _OF_NOTEBOOKS:
            return _OF_NOTEBOOKS[kind]
        if kind == "array":
            index, strides = value
            array = self._leaf(index)
            if strides is not None:
                came_without_gaps(array, strides)
            return array
        if kind in ("window", "known storage's window", "known array's window"):
            # pickle's memo has the array's reference once: several names of one array lead here with the same tuple.
            if id(pid) not in self._arrays:
                self._arrays[id(pid)] = pid, self._window(kind, *value)
            return self._arrays[id(pid)][1]
        if kind == "text":
            return text_at(value)
        if kind == "device":
            return self._devices.setdefault(value, self._device(torch.device(value)))
        if kind == "numbers":
            index, dtype, *place = value
            storage = self._leaf(index)
            return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *place)
        if kind in ("storage window", "known array's storage"):
            dtype, index, *place = value
            if (storage := self._windows.get((kind, *value))) is None:
                if kind == "storage window":
                    storage = storage_window(self._leaf(index), *place)
                else:
                    layout, *there = place
                    storage = known_arrays_storage(self._known[index], layout, tuple(there))
                self._windows[kind, *value] = storage
            return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        index, dtype = value
        storage = self._known[index].untyped_storage() if kind == "known storage" else self._leaf(index)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def _window(self, kind: str, index: int, *place: Any) -> np.ndarray[Any, Any]:
        known: Any = self._known[index] if kind != "window" else None
        if kind == "known array's window":
            layout, *there = place
            return known_arrays_window(known, layout, tuple(there))
        *there, writeable = place
        memory = self._leaf(index) if known is None else known.untyped_storage()
        return window(memory, *there, writeable=writeable)

    def _device(self, there: torch.device) -> torch.device:
        here = self._device_for(there.type)
        return there if here == torch.device(there.type) else here

    def _leaf(self, index: int) -> Any:
        if index not in self._made:
            leaf, buffer = self._packed.leaves[index], self._packed.buffers[index]
            if leaf.kind == "array":
                flat = np.frombuffer(buffer, dtype=np.dtype(leaf.dtype)) if buffer.nbytes else np.empty(0, np.dtype(leaf.dtype))
                self._made[index] = flat.reshape(leaf.shape, order=leaf.order)
            else:
                device = self._device_for(leaf.device)
                if buffer.nbytes:
                    memory = torch.frombuffer(buffer, dtype=torch.uint8)
                    storage = (memory.clone() if buffer.nbytes <= _SMALL and not leaf.shared else memory).untyped_storage()
                    if leaf.shared and device.type == "cpu":
                        storage = in_shared_memory(storage)
                else:
                    storage = torch.UntypedStorage(0)
                if device.type != "cpu":
                    storage = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).to(device).untyped_storage()
                self._made[index] = storage
        return self._made[index]
