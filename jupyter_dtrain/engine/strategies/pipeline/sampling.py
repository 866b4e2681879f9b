"""Random draws of blocks that another rank computes, such as dropout masks.

The rank of a stage draws what the requesting rank would draw for its shard of the batch. The requesting rank therefore sends the state
of its generators, and takes over the state after the draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...forward.sharded_call import ShardedCall
from ...rng.streams import TorchState
from .handed_values import NotSent


@dataclass(eq=False)
class ModelCall:
    """A call of a model in progress."""

    sharded: ShardedCall
    number: int
    drawing: Any = None
    is_entered: bool = False
    repeats: Counter[tuple[int, ...]] = field(default_factory=Counter)
    has_node: bool = False

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Undo the draws of the ``with`` block if it raises :class:`.NotSent`: the rank calls the same modules once more."""
        before, drawing, stream = TorchState.now(), self.drawing, self.sharded.stream
        draws = {} if drawing is None else vars(drawing)
        own = {name: value.copy() if isinstance(value, list | dict) else value for name, value in draws.items()}
        other = None if stream is None else stream.other
        try:
            yield
        except NotSent:
            before.set()
            draws.update(own)
            if stream is not None and other is not None:
                stream.other = other
            raise


@dataclass
class Sampling:
    """The random state of a rank within a model's call: its generators, and the draws so far."""

    own: torch.Tensor | None
    cell: torch.Tensor | None
    loaded: slice
    drawn: list[Any]
    dims: list[Any]

    @classmethod
    def of(cls, call: ModelCall) -> Sampling:
        """Return the present state. If a model drew nothing so far, the rank of the stage checks that it still does not."""
        share, drawing = call.sharded.placement.share, call.drawing
        if drawing is None:
            return cls(None, None, share.loaded, [], [])
        assert call.sharded.stream is not None
        return cls(TorchState.now().cpu, call.sharded.stream.other.cpu, share.loaded, drawing.drawn, drawing.dims)

    @contextmanager
    def going_on(self, call: ModelCall) -> Any:
        """Draw as the requesting rank until the end of the ``with`` block. Yields a list, which then has the state after the draws."""
        drawing, stream = call.drawing, call.sharded.stream
        result: list[Sampling] = []
        before = TorchState.now()
        if drawing is None or stream is None or self.own is None or self.cell is None:
            yield result
            moved = not TorchState.now().is_same(before)
            before.set()
            result.append(Sampling(None, None, self.loaded, [moved] * moved, []))
            return
        own, other = dict(vars(drawing)), stream.other
        try:
            torch.default_generator.set_state(self.own)
            stream.other = TorchState(self.cell, None)
            drawing.go_on_as(self.loaded, self.drawn, self.dims)
            yield result
            if drawing.per_rank:
                raise NotSent("they draw in another way than in their first call")
            result.append(Sampling(TorchState.now().cpu, stream.other.cpu, self.loaded, drawing.drawn, drawing.dims))
        finally:
            vars(drawing).update(own)
            stream.other = other
            before.set()

    def follow(self, call: ModelCall) -> None:
        """Set the generators of this rank, and the draws of `call`, to this state."""
        drawing, stream = call.drawing, call.sharded.stream
        if drawing is None or stream is None or self.own is None or self.cell is None:
            if self.drawn:
                torch.rand((), device="cpu")  # the model has begun to draw: advancing the generator shows that
            return
        torch.default_generator.set_state(self.own)
        stream.other = TorchState(self.cell, stream.other.cuda)
        drawing.drawn, drawing.dims = list(self.drawn), list(self.dims)
