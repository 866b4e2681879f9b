"""What blocks draw at random on another rank: as the rank draws that calls them, for its part of the batch, from where its streams are."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...forward.sharded_call import ShardedCall
from ...rng.streams import TorchState
from .handed_values import NotSent


@dataclass(eq=False)
class ModelCall:
    """A call of a model that is under way."""

    sharded: ShardedCall
    number: int
    drawing: Any = None
    is_entered: bool = False
    repeats: Counter[tuple[int, ...]] = field(default_factory=Counter)
    has_node: bool = False


@dataclass
class Sampling:
    """Where the draws of a rank's call of a model are: the streams, and how many it has drawn."""

    own: torch.Tensor | None
    cell: torch.Tensor | None
    loaded: slice
    drawn: list[Any]
    dims: list[Any]

    @classmethod
    def of(cls, call: ModelCall) -> Sampling:
        """Return where they are now. A model that draws nothing has its rank look whether that is still so."""
        share, drawing = call.sharded.placement.share, call.drawing
        if drawing is None:
            return cls(None, None, share.loaded, [], [])
        assert call.sharded.stream is not None
        return cls(TorchState.now().cpu, call.sharded.stream.other.cpu, share.loaded, drawing.drawn, drawing.dims)

    @contextmanager
    def going_on(self, call: ModelCall) -> Any:
        """Draw as that rank does, until the end of the ``with`` block; yield a list, in which then is where its draws are."""
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
        """Go on from here in `call`."""
        drawing, stream = call.drawing, call.sharded.stream
        if drawing is None or stream is None or self.own is None or self.cell is None:
            if self.drawn:
                torch.rand((), device="cpu")  # the model draws now, which is seen by where the stream is
            return
        torch.default_generator.set_state(self.own)
        stream.other = TorchState(self.cell, stream.other.cuda)
        drawing.drawn, drawing.dims = list(self.drawn), list(self.dims)
