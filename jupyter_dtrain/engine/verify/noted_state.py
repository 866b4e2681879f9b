"""Records the state that a call can change, to undo its changes and to tell what they were.

Tensors are copied only when something writes into them (`copy_on_write.py`).
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

from ..forward.state import restore_array, same_arrays
from ..rng.streams import OtherStreams, TorchState
from .contents import copy_of, is_same, refill
from .copy_on_write import CopyOnWrite, storages_of
from .frozen import ABSENT, Freezer, Frozen
from .reachable import Reachable

LARGEST = 1 << 25
"""Largest size in bytes of an array that is copied; a larger one is read-only during a trial."""

Changes = dict[tuple[int, str], tuple[str, Frozen]]
"""The changes of a call: by holder and key, the name for the user and the present value."""


class _TensorBefore:
    """A tensor as it was: its memory and its version counter."""

    def __init__(self, where: str, tensor: torch.Tensor) -> None:
        self.where, self.tensor = where, tensor
        self.alias = tensor.detach()
        self.version = _version(tensor)
        self.requires_grad, self.grad = tensor.requires_grad, tensor.grad if tensor.is_leaf else None

    def was_moved(self) -> bool:
        return _place(self.tensor) != _place(self.alias)

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
                if array_before is not None and not same_arrays(array, array_before):
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
                if array_before is not None:
                    restore_array(array, array_before)
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


def _place(tensor: torch.Tensor) -> tuple[torch.Size, list[int]]:
    """Return the shape of a tensor and the addresses of its memory."""
    try:
        return tensor.shape, [tensor.data_ptr()]
    except RuntimeError:  # a sparse one
        return tensor.shape, [*storages_of(tensor)]
