"""Tensors that span the ranks once the others have left: what this rank knows by itself is told, all else is an error.

A failed cell's frames are looked at when its ranks exchange nothing any more. A rank's part under the name of the whole would be another
number than the cell's, so whoever asks for the whole is told how to see the part.
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
    """Refuses every collective. What has come to this rank before is known."""

    def full_tensor(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the value of `tensor`, if it has come to all ranks with something else; nobody could give it a graph."""
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
    """Let operations on tensors that span the ranks do what `rank` can by itself, until the end of the ``with`` block.

    What is printed of one that cannot be read tells what it is instead of its numbers, so that all variables can be printed at once.
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
    """Return the part of `value` that this rank has, and in words what it is a part of; the value itself where it spans nothing."""
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
