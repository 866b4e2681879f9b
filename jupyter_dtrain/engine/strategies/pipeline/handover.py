"""Decides which calls of models are computed stage by stage, and which by each rank alone.

All ranks decide alike, because a call by stages is collective. If a rank computes a model alone, it fetches the parameters block by block,
and a notice says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ...code_inspection import model_uses
from ...forward.sharded_call import ShardedCall
from ...identity_map import IdentityMap
from ...module_tree import modules_in
from ...tensor.graph_placement import graph_nodes
from ...tensor.placement_types import GlobalTensor, to_local
from .calls import StageCalls
from .stage_node import NODE

_REFUSED = "`--strategy pipeline` has handed activations on from stage to stage, and {what} goes another way. Use `--strategy zero3`."

SEEN = 2
"""The number of first steps in which each rank fetches parameters. They show which gradients the cell requests."""


class Handover:
    """Decides which calls of a cell's models are handed on to stages.

    Parameters
    ----------
    calls : StageCalls
        Makes the calls that are handed on.
    num_stages : callable
        Returns the number of stages of a model.
    steps_done : callable
        Returns the number of steps so far.
    say : callable
        Shows a notice to the user.

    Attributes
    ----------
    off : str, optional
        What in the cell excludes handing on, from now on. ``None``: nothing.
    """

    def __init__(
        self, calls: StageCalls, num_stages: Callable[[nn.Module], int], *, steps_done: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        self._calls, self._num_stages, self._steps_done, self._say = calls, num_stages, steps_done, say
        self._why_not: IdentityMap[dict[bool, str]] = IdentityMap()  # by model, in training and in evaluation
        self._told: set[str] = set()
        self.off: str | None = None

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return the function that calls a model on the rank's shard: stage by stage, or on this rank alone."""
        return partial(self._calls.forward, sharded, sharded.own_call) if self._is_handed_on(sharded) else sharded.own_call

    def _is_handed_on(self, sharded: ShardedCall) -> bool:
        """Return whether a call is computed stage by stage. The answer is the same on all ranks."""
        module = sharded.module
        if (
            self.off is not None
            or self._calls.in_pass
            or self._steps_done() < SEEN
            or sharded.called.accepted
            or self._num_stages(module) < 2
        ):
            return False
        known = self._why_not.get(module) or self._why_not.set(module, {})
        if module.training not in known:
            known[module.training] = _why_not(sharded)
        why = "a backward pass of its own is not linear" if sharded.called.bends else known[module.training]
        self._tell(module, why)
        return not why

    def on_full_batch(self, module: nn.Module) -> None:
        """Say that a model is not handed on, because its `forward` needs the full batch."""
        if self._num_stages(module) > 1:
            self._tell(module, "its `forward` is to see all of a batch")

    def _tell(self, module: nn.Module, why: str) -> None:
        text = f"`--strategy pipeline` sends no activations of `{type(module).__name__}`, and each engine fetches its blocks: {why}."
        if why and text not in self._told:
            self._told.add(text)
            self._say(text)

    def turn_off(self, what: str) -> None:
        """Hand nothing on from now on, because the cell has `what`."""
        if self.off is None:
            self.off = what
            self._say(f"`--strategy pipeline` sends no activations, and each engine fetches the blocks of models: the cell has {what}.")

    def refuse(self, what: str, roots: Sequence[torch.Tensor]) -> None:
        """Hand nothing on from now on, because the cell requests gradients by `what`.

        Raises
        ------
        RuntimeError
            Other ranks already have pieces of the graph of `roots`, which cannot be differentiated by `what`.
        """
        if self._calls.num_with_graph and has_pieces([to_local(root) if isinstance(root, GlobalTensor) else root for root in roots]):
            raise RuntimeError(_REFUSED.format(what=what))
        self.turn_off(what)


def _why_not(sharded: ShardedCall) -> str:
    """Return why activations of a model are not handed on, or an empty string if they are."""
    module = sharded.module
    if sharded.layers and module.training:
        return "it takes statistics over the batch (BatchNorm), which micro-batches do not have"
    if any(isinstance(part, nn.RNNBase) for part in modules_in(module)):
        return "it has recurrent layers"
    if sharded.draws is None or sharded.draws.is_per_rank(module):
        return "each engine draws its own random numbers"
    if model_uses(module, lambda _, names: any("checkpoint" in name for name in names)):
        return "its code checkpoints activations"
    return ""


def has_pieces(roots: Sequence[torch.Tensor]) -> bool:
    """Return whether other ranks have pieces of the graph of `roots`."""
    return any(isinstance(node, NODE) for node in graph_nodes(roots))
