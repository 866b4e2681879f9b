"""Which calls of models go from stage to stage, and which each rank makes by itself: decided alike on all ranks, and said in a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ...code_inspection import model_uses
from ...forward.sharded_call import ShardedCall
from ...module_tree import IdentityMap, modules_in
from ...tensor.graph_placement import graph_nodes
from ...tensor.placement_types import GlobalTensor, to_local
from .calls import StageCalls
from .stage_node import NODE

_REFUSED = "`--strategy pipeline` has handed activations on from stage to stage, and {what} goes another way. Use `--strategy zero3`."

SEEN = 2
"""Steps in which each rank fetches what it computes with: then it is known which gradients the cell asks for."""


class Handover:
    """What is handed on of what a cell calls.

    Parameters
    ----------
    calls : StageCalls
        Makes such calls.
    num_stages : callable
        Returns on how many ranks a model is computed.
    steps_done : callable
        Returns how many steps the cell has done.
    say : callable
        Tells the user something.

    Attributes
    ----------
    off : str, optional
        What of the cell it is that has nothing handed on any more.
    """

    def __init__(
        self, calls: StageCalls, num_stages: Callable[[nn.Module], int], *, steps_done: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        self._calls, self._num_stages, self._steps_done, self._say = calls, num_stages, steps_done, say
        self._why_not: IdentityMap[dict[bool, str]] = IdentityMap()  # by model, in training and in evaluation
        self._told: set[str] = set()
        self.off: str | None = None

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return what makes a model's call on the rank's part: with the others, or by itself."""
        return partial(self._calls.forward, sharded, sharded.own_call) if self._is_handed_on(sharded) else sharded.own_call

    def _is_handed_on(self, sharded: ShardedCall) -> bool:
        """Return whether a call goes from stage to stage: the same on all ranks."""
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
            self._tell(module, known[module.training])
        return not known[module.training]

    def on_full_batch(self, module: nn.Module) -> None:
        """Say that a model is not handed on, as its code is to see all of a batch."""
        if self._num_stages(module) > 1:
            self._tell(module, "its `forward` is to see all of a batch")

    def _tell(self, module: nn.Module, why: str) -> None:
        text = f"`--strategy pipeline` sends no activations of `{type(module).__name__}`, and each engine fetches its blocks: {why}."
        if why and text not in self._told:
            self._told.add(text)
            self._say(text)

    def turn_off(self, what: str) -> None:
        """Hand nothing on from now on, as the cell has something that goes another way."""
        if self.off is None:
            self.off = what
            self._say(f"`--strategy pipeline` sends no activations, and each engine fetches the blocks of models: the cell has {what}.")

    def refuse(self, what: str, roots: Sequence[torch.Tensor]) -> None:
        """Hand nothing on from now on; what has been cannot be gone through in that way.

        Raises
        ------
        RuntimeError
            Other ranks have pieces of the graph of `roots`.
        """
        if self._calls.num_with_graph and has_pieces([to_local(root) if isinstance(root, GlobalTensor) else root for root in roots]):
            raise RuntimeError(_REFUSED.format(what=what))
        self.turn_off(what)


def _why_not(sharded: ShardedCall) -> str:
    """Return why activations of a model are not handed on; empty: they are."""
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
