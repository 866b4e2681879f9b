"""One backward pass of the cell on this rank: where it begins, which leaves it comes to, and what is to be known of it afterwards.

The rank's part of the global batch enters here, at the roots of the graph: a mean over a share of weight *w* of the global batch is
scaled by *w · world_size*, so that an average over the ranks is the gradient of the global batch.
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
        What the cell has called it for.
    roots : list of Tensor
        The rank's parts of `tensors`, each of the part's shape.
    gradients : list of Tensor or None
        To begin with at each root, of its shape and already scaled; ``None``: one.
    factors : sequence of float
        What each was scaled by.
    inputs : sequence of Tensor, optional
        The leaves that the cell asks for; ``None``: all.
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
        """Whether the gradients are to have a graph themselves."""
        return bool(self.options.get("create_graph"))

    def reached(self) -> list[torch.Tensor]:
        """Return the leaves that ranks share and the pass comes to, in the order in which the graph is walked."""
        reached = leaves_of(self.roots)
        if self.inputs is None:
            return reached
        kept = {id(tensor) for tensor in self.inputs}
        return [leaf for leaf in reached if id(leaf) in kept]

    def loss(self) -> GlobalTensor | None:
        """Return the first of `tensors` if it is one number, which ranks would put together from their parts when it is read."""
        first = self.tensors[0]
        if self.inputs is None and isinstance(first, GlobalTensor) and isinstance(first.placement, Partial) and self.roots[0].numel() == 1:
            return first
        return None

    def value(self) -> torch.Tensor:
        """Return the rank's part of the loss, one number in the shape of its root, scaled as its gradient is."""
        part, factor = self.roots[0].detach(), self.factors[0]
        if not factor:  # the part of a rank without samples may be anything
            return torch.zeros_like(part)
        return part if factor == 1.0 else part * factor

    def reach_too(self, leaves: Sequence[torch.Tensor]) -> None:
        """Let the pass come to `leaves` as well, to which it adds zeros."""
        self.roots.append(torch.stack([leaf.reshape(-1)[:1].sum() for leaf in leaves]).sum())
        self.gradients.append(torch.zeros_like(self.roots[-1]))

    def run(self, hooks: AbstractContextManager[None] | None, finish: Callable[[], None] | None) -> None:
        """Run it, and then `finish`, within `hooks`."""
        ends = None if self.inputs is None else [in_graph(tensor) for tensor in self.inputs]
        with hooks or nullcontext():
            self.original(self.roots, self.gradients, inputs=ends, **self.options)
            if finish is not None:
                finish()


class Computed:
    """Tells when a backward pass has been computed: of what is called at its end, this is first, the reducer's waiting comes after."""

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
    """Return the gradient with which the backward pass begins at the rank's `part` of a root, in its shape; ``None``: one."""
    if not part.requires_grad or factor == 1.0:
        return start
    return torch.full_like(part, factor) if start is None else start * factor
