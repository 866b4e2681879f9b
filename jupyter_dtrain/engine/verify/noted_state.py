"""Records the state that a call can change, to undo its changes and to tell what they were.

Tensors are copied only when something writes into them (:class:`CopyOnWrite`), which is rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from ..rng.streams import OtherStreams, TorchState
from .contents import copy_of, is_same, refill
from .frozen import ABSENT, Freezer, Frozen
from .reachable import Reachable

LARGEST = 1 << 25
"""Largest size in bytes of an array that is copied; a larger one is read-only during a trial."""

Changes = dict[tuple[int, str], tuple[str, Frozen]]
"""The changes of a call: by holder and key, the name for the user and the present value."""


class CopyOnWrite(TorchDispatchMode):
    """Copies the memory of tensors before something writes into it.

    Parameters
    ----------
    tensors : iterable of torch.Tensor
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {address for tensor in tensors if (address := _address_of_storage(tensor))}
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run `func`, after copying what it writes into."""
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for number, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = args[number] if number < len(args) else kwargs.get(argument.name)
                    for tensor in value if isinstance(value, list | tuple) else (value,):
                        if isinstance(tensor, torch.Tensor):
                            self.copy(tensor)
        return func(*args, **kwargs)

    def copy(self, tensor: torch.Tensor) -> None:
        """Copy the memory of `tensor`, unless it was copied before."""
        address = _address_of_storage(tensor)
        if address in self._known and address not in self._copies:
            storage = tensor.untyped_storage()
            self._copies[address] = storage, storage.clone()

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of `tensor` was copied."""
        return _address_of_storage(tensor) in self._copies

    def restore(self) -> None:
        """Restore the copies."""
        for storage, copy in self._copies.values():
            if storage.nbytes() != copy.nbytes():  # those of observers are empty until they are called
                storage.resize_(copy.nbytes())
            storage.copy_(copy)


class _TensorBefore:
    """A tensor as it was: its memory and its version counter."""

    def __init__(self, where: str, tensor: torch.Tensor) -> None:
        self.where, self.tensor = where, tensor
        self.alias = tensor.detach()
        self.version = _version(tensor)
        self.requires_grad, self.grad = tensor.requires_grad, tensor.grad if tensor.is_leaf else None

    def was_moved(self) -> bool:
        return self.tensor.shape != self.alias.shape or _address(self.tensor) != _address(self.alias)

    def was_written(self) -> bool:
        return self.was_moved() or _version(self.tensor) != self.version

    def restore(self) -> None:
        tensor = self.tensor
        if self.was_moved():
            tensor.data = self.alias
        if tensor.is_leaf:
            if tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
            if tensor.grad is not self.grad:
                tensor.grad = self.grad
        if self.version is not None and tensor._version != self.version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))


class StateBefore:
    """The present state of everything that code can reach and change.

    Parameters
    ----------
    roots : iterable of (str, object)
        As of :class:`Reachable`.
    """

    def __init__(self, roots: Iterable[tuple[str, object]]) -> None:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            self.reachable = found = Reachable(roots)
            self._copies = [copy_of(holder.content) for holder in found.holders]
            self._tensors = [_TensorBefore(where, tensor) for where, tensor in found.tensors]
            self.writes = CopyOnWrite(tensor for _, tensor in found.tensors)
            for _, tensor in found.tensors:
                if tensor.requires_grad is False and tensor.numel() <= 1:
                    self.writes.copy(tensor)  # counters, whose memory NumPy may have as well
            self._arrays = [(array, array.copy() if array.nbytes <= LARGEST else None) for _, array in found.arrays]
            self._parametrized = dict(parametrize._cache)
            self._cell, self._others = TorchState.now(), OtherStreams.of(found.generators)
            self._files = [(file, file.tell()) for file in found.files]
        self._frozen_arrays: list[np.ndarray[Any, Any]] = []

    def copy_statistics(self, model: nn.Module) -> None:
        """Copy the running statistics of normalization layers, whose writes are not seen."""
        for layer in model.modules():
            if isinstance(layer, _NormBase | torch.jit.ScriptModule):
                for buffer in layer.buffers(recurse=False):
                    self.writes.copy(buffer)

    # -- what a call has done -------------------------------------------------------------------------------------------

    def has_drawn(self) -> bool:
        """Return whether random numbers have been drawn, from any stream."""
        return self.has_drawn_for_cell() or not self._others.recapture().are(self._others)

    def has_drawn_for_cell(self) -> bool:
        """Return whether PyTorch's random stream has advanced."""
        return not TorchState.now().is_same(self._cell)

    def streams(self) -> tuple[bytes, OtherStreams]:
        """Return the present states of random streams."""
        return TorchState.now().to_bytes(), self._others.recapture()

    def changes(self) -> Changes:
        """Return the changes since, each with its name for the user."""
        found: Changes = {}
        freezer = Freezer(self.reachable.numbers)
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            for number, (holder, copy) in enumerate(zip(self.reachable.holders, self._copies, strict=True)):
                if not is_same(holder.content, copy):
                    self._note(found, number, holder, copy, freezer)
            first = len(self._copies)
            for number, before in enumerate(self._tensors, first):
                if before.was_written() or (self.writes.has(before.tensor) and not before.was_moved()):
                    found[number, ""] = before.where, freezer.frozen(before.tensor)
            first += len(self._tensors)
            for number, ((where, array), (_, array_before)) in enumerate(zip(self.reachable.arrays, self._arrays, strict=True), first):
                if array_before is not None and not _same_arrays(array, array_before):
                    found[number, ""] = where, freezer.frozen(array)
        return found

    @staticmethod
    def _note(found: Changes, number: int, holder: Any, copy: Any, freezer: Freezer) -> None:
        now = copy_of(holder.content)
        if not isinstance(copy, dict):
            found[number, ""] = holder.where, freezer.frozen(now)
            return
        for key in [*now, *(key for key in copy if key not in now)]:
            if key not in now:
                found[number, repr(key)] = holder.place(key), ABSENT
            elif key not in copy or copy[key] is not now[key]:
                found[number, freezer.name(key)] = holder.place(key), freezer.frozen(now[key])

    # -- to undo it ------------------------------------------------------------------------------------------------------

    def can_restore(self) -> bool:
        """Return whether all changes since can be undone."""
        with torch._C.DisableTorchFunctionSubclass():
            return all(not before.was_written() or before.was_moved() or self.writes.has(before.tensor) for before in self._tensors)

    def forbid_writing(self) -> None:
        """Make arrays that are too large to copy read-only, until :meth:`restore`."""
        self._frozen_arrays = [array for array, copy in self._arrays if copy is None and array.flags.writeable]
        for array in self._frozen_arrays:
            array.flags.writeable = False

    def restore(self) -> None:
        """Restore the state."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            for holder, copy in zip(self.reachable.holders, self._copies, strict=True):
                refill(holder.content, copy)
            self.writes.restore()
            for before in self._tensors:
                before.restore()
            for array, array_before in self._arrays:
                if array_before is not None and not _same_arrays(array, array_before):
                    array[...] = array_before
            for array in self._frozen_arrays:
                with suppress(ValueError):
                    array.flags.writeable = True
            self._frozen_arrays = []
            parametrize._cache.clear()
            parametrize._cache.update(self._parametrized)
            for file, place in self._files:
                if not file.closed and file.tell() != place:
                    file.seek(place)
            self.rewind()

    def rewind(self) -> None:
        """Restore random streams."""
        self._cell.set()
        self._others.set()


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a sparse one
        return 0


def _address_of_storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _same_arrays(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    if left.shape != right.shape:
        return False
    if left.dtype == object:
        return all(a is b for a, b in zip(left.reshape(-1), right.reshape(-1), strict=True))
    return left.tobytes() == right.tobytes()
