"""In-place writes of a model to the tensors that it is given: ``x -= self.mean`` in `forward`.

A write to the rank's part of a batch stays there, once, however many learning calls are made. A write to a tensor that all ranks have
would make it differ between ranks: such a model gets the full batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..tensor.ops.operands import same_bytes
from ..tensor.placement_types import GlobalTensor
from ..tensor.versions import copy_uncounted, note_write
from .state import CannotRestore


class InputValues:
    """The tensors that a model is given, as they are before its call.

    Parameters
    ----------
    values : iterable
        Tensors, and pytrees that may hold tensors.
    keep : bool
        Whether the call may have to be repeated, so that values must be copied.
    uncounted : bool
        Whether the model may write without increasing version counters (``.data``, arrays).
    """

    def __init__(self, values: Iterable[Any], *, keep: bool, uncounted: bool = False) -> None:
        distinct: dict[int, torch.Tensor] = {}
        for value in values:
            for leaf in (value,) if isinstance(value, torch.Tensor) else tree_leaves(value):
                if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter):
                    distinct[id(leaf)] = leaf
        with torch._C.DisableTorchFunctionSubclass():
            self._before = [
                _Input(tensor, tensor._version, tensor.detach().clone() if keep and tensor.layout == torch.strided else None)
                for tensor in distinct.values()
                if not tensor.is_inference()
            ]
            self._replicated = [one for one in self._before if not isinstance(one.tensor, GlobalTensor)]
        self.uncounted = uncounted

    def has_uncounted(self) -> bool:
        """Return whether a tensor's values changed without its version counter; compares only tensors that were copied."""
        return any(not one.has_other_version() and one.has_other_bytes() for one in self._before)

    def count(self) -> None:
        """Increase the version counters of all tensors that the model may have written to without doing so."""
        for one in self._before if self.uncounted else ():
            note_write(one.tensor)

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that were written to; all tensors if writes may be uncounted."""
        return [one.tensor for one in self._written()]

    def replicated_are_written(self) -> bool:
        """Return whether the model wrote to a tensor that is replicated on all ranks."""
        return any(one.has_other_version() or one.has_other_bytes() for one in self._replicated)

    def restore(self) -> None:
        """Restore the values before the call.

        Raises
        ------
        CannotRestore
            A tensor that was written to was not copied, or requires gradients, so that its graph contains the write.
        """
        for one in self._written():
            with torch._C.DisableTorchFunctionSubclass():
                if one.copy is None or one.tensor.requires_grad:
                    raise CannotRestore
            copy_uncounted(one.tensor, one.copy)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Restore the values before the call for the ``with`` block, and return to the current values at its end."""
        changed = [(one.tensor, one.copy) for one in self._written() if one.copy is not None]
        with torch._C.DisableTorchFunctionSubclass():
            now = [tensor.detach().clone() for tensor, _ in changed]
        for tensor, copy in changed:
            copy_uncounted(tensor, copy)
        try:
            yield
        finally:
            for (tensor, _), values in zip(changed, now, strict=True):
                copy_uncounted(tensor, values)

    def _written(self) -> list[_Input]:
        return [one for one in self._before if self.uncounted or one.has_other_version()]


class _Input(NamedTuple):
    """A tensor with its version and, optionally, a copy of its values from before the call."""

    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None

    def has_other_version(self) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return self.tensor._version != self.version

    def has_other_bytes(self) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return self.copy is not None and not same_bytes(self.tensor.detach(), self.copy)
