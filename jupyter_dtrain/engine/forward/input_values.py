"""What a model may write into the tensors that it is given: ``x -= self.mean`` in `forward`.

In a batch, which is the rank's part of it, that is left there, once, however often the model is called to learn from it. What all ranks
have would become another tensor on each: such a model gets the whole batch.
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
        Tensors, and what may hold some.
    keep : bool
        Whether the call may have to be made again.
    uncounted : bool
        Whether the model may write to them by their ``.data`` or as arrays.
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
        self.uncounted = uncounted

    def has_uncounted(self) -> bool:
        """Return whether one was written to that nothing has counted, as far as the values before are known."""
        return any(not one.has_other_version() and one.has_other_bytes() for one in self._before)

    def count(self) -> None:
        """Count what the model may have written that nothing has counted."""
        for one in self._before if self.uncounted else ():
            note_write(one.tensor)

    def written(self) -> list[torch.Tensor]:
        """Return those that were written to; all, if nothing may have counted it."""
        return [one.tensor for one in self._written()]

    def replicated_are_written(self) -> bool:
        """Return whether a tensor was written to that all ranks have."""
        others = (one for one in self._before if not isinstance(one.tensor, GlobalTensor))
        return any(one.has_other_version() or one.has_other_bytes() for one in others)

    def restore(self) -> None:
        """Let all be as before.

        Raises
        ------
        CannotRestore
            Of a tensor that was written to, the values before are not known, or its graph goes on from what was written.
        """
        for one in self._written():
            with torch._C.DisableTorchFunctionSubclass():
                if one.copy is None or one.tensor.requires_grad:
                    raise CannotRestore
            copy_uncounted(one.tensor, one.copy)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Let all have the values before until the end of the ``with`` block, and then those of now."""
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
    """A tensor, and what it was before the call."""

    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None

    def has_other_version(self) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return self.tensor._version != self.version

    def has_other_bytes(self) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return self.copy is not None and not same_bytes(self.tensor.detach(), self.copy)
