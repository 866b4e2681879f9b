"""Extra calls of a model that only gather information and are undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...system.interpreter import unwarned
from ..code_inspection import model_uses
from ..rng.streams import OtherStreams
from ..tensor.compile import not_compiled
from ..tensor.placement_types import Shard
from ..tensor.redistribute import Exchange
from ..tensor.view import GlobalView
from .arguments import CallArguments
from .cross_sample import at_the_end
from .light_module_state import LightModuleState
from .module_state import ModuleState
from .state import Change, fingerprint

_ORDERS = frozenset(("choice", "choices", "permutation", "permuted", "sample", "shuffle"))
"""Methods of Python and NumPy that draw orders, which may consume equally many numbers for one sample more."""


@dataclass(kw_only=True, eq=False)
class LearningCalls:
    """Extra calls that accompany a model's call on the rank's share.

    Attributes
    ----------
    module, given, placement, own_call, view
        As in `ShardedCall`.
    handed : CallArguments
        The arguments of that call.
    before : ModuleState or LightModuleState
        State of the model before that call.
    state_now : callable
        Returns the current state of the model.
    """

    module: nn.Module
    given: Any
    placement: Shard
    view: GlobalView
    own_call: Callable[[Any], Any]
    handed: CallArguments
    before: ModuleState | LightModuleState
    state_now: Callable[[], ModuleState]

    def call(self, convert: Callable[[Any], Any], mode: AbstractContextManager[Any] | None = None, *, as_it_is: bool = False) -> Any:
        """Run the model on its arguments converted by `convert`, and undo all effects.

        Gradients are off, unless the model's code uses a name with "grad" in it or `as_it_is` is true.
        """
        again = self.state_now()
        again.drop_hooks()
        self.before.rewind()
        try:
            on = torch.is_grad_enabled() and (as_it_is or model_uses(self.module, lambda _, names: any("grad" in name for name in names)))
            inputs = self.handed.inputs
            with inputs.as_before(), self.handed.as_before(convert), torch.set_grad_enabled(on), unwarned(), not_compiled():
                values = pytree.tree_map(convert, self.given)
                if inputs.written():  # the model writes to inputs: protect the batch's kept tensors
                    values = pytree.tree_map(_copied, values)
                with mode or nullcontext():
                    result = self.own_call(values)
                return self.handed.with_kept(result)
        finally:
            again.restore()

    def with_one_more(self, mode: AbstractContextManager[Any] | None = None) -> Any:
        """Run the model on one sample more than the rank's; ``None`` if that fails: the model requires its number of samples."""
        with suppress(Exception):
            return self.call(self.view.arguments.add_sample(self.placement), mode)
        return None

    def draw_for_samples_elsewhere(self) -> bool:
        """Return whether the model draws per sample from Python's stream, NumPy's or a generator of its own. A collective."""
        if model_uses(self.module, lambda _, names: not _ORDERS.isdisjoint(names)):
            return True
        then = OtherStreams.now(self.module)
        ends: list[OtherStreams] = []
        self.with_one_more(at_the_end(lambda: ends.append(OtherStreams.now(self.module))))
        differ = not (ends and ends[0].are(then))
        return any(Exchange.objects(differ))

    def note_by_samples(self, changes: Sequence[Change], accepted: set[tuple[int, Any]]) -> bool:
        """Return whether the state that the model keeps depends on its samples: how many it has seen, their mean. A collective.

        `changes` are those of its first call. The model is called on the rank's share, on one sample more and on the full batch. A
        change that is the same after each of these calls, and on all ranks, does not depend on samples: a count of calls. Its names go into
        `accepted`.
        """
        ends: list[str] = []
        for convert in (
            partial(self.view.arguments.shard_argument, placement=self.placement),
            self.view.arguments.add_sample(self.placement),
            self.view.full_tensor,
        ):
            with suppress(Exception):
                self.call(convert, at_the_end(lambda: ends.append(fingerprint(changes))), as_it_is=True)
        differ = bool(changes) and (len(ends) < 3 or len(set(ends)) > 1)
        of_ranks = Exchange.objects((differ, ends[:1]))
        if any(differ for differ, _ in of_ranks) or any(of_rank != of_ranks[0] for of_rank in of_ranks):
            return True
        accepted.update(name for change in changes for name in change.names())
        return False


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) else value
