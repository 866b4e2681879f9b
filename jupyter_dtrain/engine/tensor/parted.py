"""Global tensors in a post-mortem, when the other ranks have left: no collective is possible.

The frames of a failed cell are inspected after its ranks have stopped exchanging. A value that every rank already has can be read. Any
other read is an error, because the rank's part is not the value that the cell has seen. The error names `local`, which shows the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ...system.patches import patched
from .placement_types import GlobalTensor, Partial, Shard, to_local
from .redistribute import Exchange
from .view import GlobalView

REFUSED = "it spans the ranks, and the others have left: `local EXPRESSION` shows the part of this rank"


class NoExchange(Exchange):
    """An `Exchange` that refuses every collective. Values that the rank already has can be read.

    Raises
    ------
    RuntimeError
        From every method that would need another rank.
    """

    def full_tensor(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the cached value of `tensor`, without a graph. RuntimeError if it is not cached."""
        known = self.known(tensor)
        if known is None:
            raise RuntimeError(REFUSED)
        return known

    value = full_tensor

    @staticmethod
    def _refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(REFUSED)

    full_in_transform = resolve = sum = objects = is_same = scattered = broadcast = total = _refuse


@contextmanager
def shown_alone(rank: int, world_size: int) -> Iterator[None]:
    """Let operations on global tensors run without collectives until the end of the ``with`` block.

    The ``repr`` of a tensor whose value is not cached describes its shard instead of raising, so that all variables can be printed at once.

    Parameters
    ----------
    rank, world_size : int
    """
    view = GlobalView(rank=rank, world_size=world_size, on_whole=lambda _name: None, exchange=NoExchange())
    with view.installed():
        rules = GlobalTensor.dispatch

        def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if func is torch.Tensor.__repr__ and isinstance(args[0], GlobalTensor) and NoExchange.known(args[0]) is None:
                return _in_words(args[0])
            return rules(func, args, kwargs)

        with patched(GlobalTensor, "dispatch", staticmethod(dispatch)):
            yield


def _in_words(tensor: GlobalTensor) -> str:
    part, words = part_of(tensor)
    return f"tensor(<of all ranks; this one has {words}>, size={tuple(tensor.shape)}, dtype={part.dtype})"


def part_of(value: Any) -> tuple[Any, str]:
    """Return this rank's part of `value` and a description of it. A value that is no global tensor is returned as it is."""
    if not isinstance(value, GlobalTensor):
        return value, "the same on every rank, or this rank's own"
    part, placement = to_local(value), value.placement
    if isinstance(placement, Shard):
        own = placement.loaded
        if not placement.counts:
            return part[:0], f"none of the {placement.total} along dim {placement.dim}"
        return part, f"{own.start}:{own.stop} of the {placement.total} along dim {placement.dim}"
    assert isinstance(placement, Partial)
    return part, "a term of the sum over the ranks" if placement.weight is None else f"a mean that counts {placement.weight:.3g} of all"
