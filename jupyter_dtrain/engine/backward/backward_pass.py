"""One backward pass of the cell on this rank: its roots, the gradients it starts with, and the leaf tensors it reaches.

The rank's weight enters at the roots of the graph. A mean over a shard with weight *w* of the global batch is scaled by *w · world_size*,
so that the average over the ranks is the gradient of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ..tensor.graph_placement import in_graph
from ..tensor.placement_types import GlobalTensor, Partial
from .graph import leaves_of


@dataclass
class BackwardPass:
    """A call of ``torch.autograd.backward``, with the rank's parts in place of the cell's tensors.

    Attributes
    ----------
    original : callable
        ``torch.autograd.backward``.
    tensors : sequence of Tensor
        The cell's tensors.
    roots : list of Tensor
        The rank's parts of `tensors`.
    gradients : list of Tensor or None
        Initial gradient of each root, in its shape and scaled. ``None``: 1.
    factors : sequence of float
        Factor by which each initial gradient is scaled.
    inputs : sequence of Tensor, optional
        The ``inputs`` argument of the cell; ``None``: all leaves.
    options : dict of str to object
        The other arguments of the call.
    """

    original: Callable[..., None]
    tensors: Sequence[torch.Tensor]
    roots: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    factors: Sequence[float]
    inputs: Sequence[torch.Tensor] | None
    options: dict[str, Any]

    @property
    def creates_graph(self) -> bool:
        """Whether the cell has passed ``create_graph=True``."""
        return bool(self.options.get("create_graph"))

    def reached(self) -> list[torch.Tensor]:
        """Return the leaves that the pass reaches and whose gradients are reduced, in the order in which the graph is walked."""
        reached = leaves_of(self.roots)
        if self.inputs is None:
            return reached
        kept = {id(tensor) for tensor in self.inputs}
        return [leaf for leaf in reached if id(leaf) in kept]

    def loss(self) -> GlobalTensor | None:
        """Return the first of `tensors` if it is a single partial value, whose reduction can be combined with that of the gradients."""
        first = self.tensors[0]
        if self.inputs is None and isinstance(first, GlobalTensor) and isinstance(first.placement, Partial) and self.roots[0].numel() == 1:
            return first
        return None

    def value(self) -> torch.Tensor:
        """Return the rank's part of the loss, one number in the shape of its root, scaled as its gradient is."""
        part, factor = self.roots[0].detach(), self.factors[0]
        if not factor:  # the part of a rank without samples may be NaN
            return torch.zeros_like(part)
        return part if factor == 1.0 else part * factor

    def reach_too(self, leaves: Sequence[torch.Tensor]) -> None:
        """Add a root from which the pass reaches `leaves` too, with zero gradients."""
        self.roots.append(torch.stack([leaf.reshape(-1)[:1].sum() for leaf in leaves]).sum())
        self.gradients.append(torch.zeros_like(self.roots[-1]))

    def run(self, hooks: AbstractContextManager[None] | None, finish: Callable[[], None] | None) -> None:
        """Run the pass, and then `finish`, within the context `hooks`."""
        ends = None if self.inputs is None else [in_graph(tensor) for tensor in self.inputs]
        with hooks or nullcontext():
            self.original(self.roots, self.gradients, inputs=ends, **self.options)
            if finish is not None:
                finish()


class Computed:
    """Calls `tell` when the rank's own backward pass is computed.

    It queues an engine callback at the first root's node. Callbacks run in order, so `tell` runs before the one of PyTorch's reducer, which
    waits for the other ranks.
    """

    def __init__(self, roots: Sequence[torch.Tensor], tell: Callable[[], None]) -> None:
        self._node = next((root.grad_fn for root in roots if root.grad_fn is not None), None)
        self._tell = tell

    def __enter__(self) -> None:
        if self._node is not None:
            self._handle = self._node.register_prehook(self._begin)

    def _begin(self, _gradients: object) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._tell)

    def __exit__(self, *_: object) -> None:
        if self._node is not None:
            self._handle.remove()


def scaled(part: torch.Tensor, start: torch.Tensor | None, factor: float) -> torch.Tensor | None:
    """Return the initial gradient of the rank's `part` of a root, ``start * factor`` in its shape; ``None`` stands for 1."""
    if not part.requires_grad or factor == 1.0:
        return start
    return torch.full_like(part, factor) if start is None else start * factor
