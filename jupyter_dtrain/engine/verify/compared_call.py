"""The two computations of a checked call: on the full batch, as one process makes it, and on the shards of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..forward.arguments import CallArguments
from ..forward.known_models import ModuleInfo
from ..tensor.placement_types import GlobalTensor, to_local
from ..tensor.recompute import BackwardPasses
from ..tensor.redistribute import Exchange
from .frozen import Freezer, apart
from .gradient_probes import Projections, projections
from .noted_state import StateBefore
from .trial import GivenUp, obstacle, unnoticed
from .verdict import SeenCall, WholeCall, differs_here

TOO_LARGE = "the whole batch does not fit"


class ComparedCall:
    """Computes a call both ways.

    Parameters
    ----------
    passes : BackwardPasses
    scale : float
        Factor by which gradients are larger in the backward pass.
    draws_per_rank : bool
        Whether models draw for each rank's shard separately.
    """

    def __init__(self, *, passes: BackwardPasses, scale: float, draws_per_rank: bool) -> None:
        self._passes, self._scale, self._draws_per_rank = passes, scale, draws_per_rank

    def whole(self, alone: Callable[[Any], Any], module: nn.Module, given: Any, before: StateBefore) -> WholeCall:
        """Return the results on the full batch, and restore the state. Collective."""
        whole = WholeCall()
        values = pytree.tree_map(self._plain, given)
        if (why := before.reachable.obstacle or obstacle()) != "":
            whole.given_up = why
            return whole
        try:
            with CallArguments(*values).as_before(self._plain), unnoticed():
                before.forbid_writing()
                with before.writes:
                    result = alone(values)
                whole.has_drawn = before.has_drawn_for_cell()
                whole.streams, whole.changes = before.streams(), before.changes()
                leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(given)):
                    with before.writes:  # behind arguments that have a graph there may be calls of the same model
                        whole.gradients = self._gradients(module, leaves, scale=1.0)
                freezer = Freezer({})
                whole.results = [freezer.frozen(leaf) for leaf in pytree.tree_leaves(result)]
        except GivenUp as error:
            whole.given_up = str(error)
        except (MemoryError, torch.OutOfMemoryError):
            whole.given_up = TOO_LARGE
        except Exception as error:
            whole.error = error.with_traceback(None)
        finally:
            before.restore()
        return whole

    def _plain(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
            return value
        if not isinstance(value, GlobalTensor):
            return value
        with torch.no_grad():  # past the view, which would keep the whole, as something that the cell has read
            whole = Exchange().full_tensor(value).detach()
        return whole.requires_grad_(value.requires_grad) if whole.is_floating_point() else whole

    def _gradients(self, module: nn.Module, leaves: list[torch.Tensor], *, scale: float) -> Projections | None:
        parts = [to_local(leaf) if isinstance(leaf, GlobalTensor) else leaf for leaf in leaves]
        placements = [leaf.placement if isinstance(leaf, GlobalTensor) else None for leaf in leaves]
        return projections(module, parts, placements, scale=scale, passes=self._passes)

    def parts(
        self, seen: Callable[[], Any], module: nn.Module, called: ModuleInfo, whole: WholeCall, before: StateBefore
    ) -> tuple[Any, SeenCall]:
        """Make the call on shards, and compare."""
        mine = SeenCall()
        try:
            result = seen()
        except Exception as error:
            mine.failed, mine.different = True, f"it fails on a part: {type(error).__name__}: {error}"
            return None, mine
        leaves = pytree.tree_leaves(result)
        cell, others = before.streams()
        assert whole.streams is not None
        drew_alone = whole.has_drawn and cell != whole.streams[0]
        if drew_alone or (self._draws_per_rank and not others.are(whole.streams[1])):
            mine.given_up = "it draws for each rank"
            return result, mine
        mine.different = differs_here(leaves, others, whole, before, mine.sums)
        if not mine.different and not called.is_open and whole.gradients is not None:
            after = state_before(module)
            try:
                with after.writes:  # a backward pass may compute activations again, and count them
                    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                    mine.gradients = self._gradients(module, tensors, scale=self._scale)
            finally:
                after.restore()
        return result, mine

    def is_certain(self, alone: Callable[[Any], Any], module: nn.Module, given: Any, before: StateBefore, whole: WholeCall) -> bool:
        """Return whether a second call on the full batch gives the same: if not, the comparison says nothing. Collective."""
        if not all(Exchange.objects(before.can_restore())):
            return False
        after = state_before(module)
        before.restore()
        again = self.whole(alone, module, given, before)
        after.restore()
        same = not again.given_up and again.error is None and len(again.results) == len(whole.results)
        same = same and not any(apart(*both) for both in zip(whole.results, again.results, strict=True))
        same = same and whole.changes.keys() == again.changes.keys()
        same = same and not any(apart(whole.changes[key][1], again.changes[key][1]) for key in whole.changes)
        return all(Exchange.objects(bool(same)))


def state_before(module: nn.Module) -> StateBefore:
    """Record the state that a call of `module` may change."""
    before = StateBefore([(f"`{type(module).__name__}`", module)])
    before.copy_statistics(module)
    return before
