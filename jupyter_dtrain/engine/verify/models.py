"""Calls of models on a part of the batch, compared with the same call on the whole batch.

At a checked call each rank first computes the whole batch, as one process would: from the same state, with the same random numbers, and
with nothing of it left. Then the call is made as always, and compared: the rows of its results, what it leaves in all that the model can
reach, and its gradients, along two directions of the parameters, for one direction of the results. Where something differs by more than
rounding, and a second computation of the whole differs not, all is put back as it was before the call and the model is run like the
cell's own code (`forward`), or, if that differs as well, given the whole batch on every rank. So no number of the call that is found
has been used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...options import Verify
from ..forward.arguments import CallArguments
from ..forward.module_state import ModuleInfo
from ..module_tree import IdentityMap, layers_taking_statistics
from ..tensor.placement_types import GlobalTensor, Shard, to_local
from ..tensor.recompute import BackwardPasses
from ..tensor.redistribute import Exchange
from .frozen import Freezer, apart
from .gradient_probes import Projections, projections
from .noted_state import StateBefore
from .report import Finding, GoBack, kind_of, shown
from .schedule import FAR, Schedule, Turn
from .trial import GivenUp, unnoticed
from .verdict import GRADIENTS, SeenCall, WholeCall, differs_here, verdict

MOST_KINDS = 8
"""Sizes of batches of which the first call is checked, of each model in training and in evaluation; of others a later one."""
TOO_LARGE = "the whole batch does not fit"


class ModelChecks:
    """Checks calls of models.

    Parameters
    ----------
    mode : {"auto", "always", "first"}
    passes : BackwardPasses
    scale : float
        By which gradients are larger on their way.
    statistics_per_rank, draws_per_rank : bool
        Whether models may take statistics, or draw, of each rank's part alone.
    whole : iterable of str
        Classes of models that are not to be given a part.
    say : callable
        Tells the user.
    step : callable
        Returns how many steps have been made.
    """

    def __init__(
        self,
        mode: Verify,
        *,
        passes: BackwardPasses,
        scale: float,
        statistics_per_rank: bool,
        draws_per_rank: bool,
        whole: Iterable[str] = (),
        say: Callable[[str], None],
        step: Callable[[], int],
    ) -> None:
        self._passes, self._scale, self._say, self._step = passes, scale, say, step
        self._statistics_per_rank, self._draws_per_rank = statistics_per_rank, draws_per_rank
        self.schedule = Schedule(mode)
        self._turns: IdentityMap[dict[tuple[bool, int], Turn]] = IdentityMap()
        self._turn = Turn()  # of the call that is made now
        self._whole = frozenset(whole)
        self._under_way = False

    def is_due(self, module: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
        """Count a call of `module`; return whether it is to be checked."""
        if self._under_way:
            return False
        turns = self._turns.get(module) or self._turns.set(module, {})
        kind = module.training, _total_of(given)
        turn = turns.get(kind)
        if turn is None:
            turn = turns[kind] = Turn(due=1 if len(turns) < MOST_KINDS else MOST_KINDS)
        self._turn = turn
        return self.schedule.note(turn)

    def call(
        self,
        seen: Callable[[], Any],
        alone: Callable[[Any], Any],
        module: nn.Module,
        called: ModuleInfo,
        given: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> Any:
        """Make a call and check it.

        Parameters
        ----------
        seen : callable
            Makes the call as always.
        alone : callable
            Calls the model with plain arguments, as one process does.
        module : nn.Module
        called : ModuleInfo
            What is known of it: here it is noted that it is not to be given a part.
        given : tuple
            Its arguments.
        """
        turn = self._turn
        if self._whole and kind_of(type(module)) in self._whole:
            called.takes_batch_for_sequence = True
        shares = [leaf.placement for leaf in pytree.tree_leaves(given) if isinstance(leaf, GlobalTensor)]
        if called.takes_batch_for_sequence or not any(isinstance(placement, Shard) for placement in shares):
            turn.due = FAR if called.takes_batch_for_sequence else turn.calls + 1
            return seen()
        if self._statistics_per_rank and layers_taking_statistics(module):
            return seen()
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:  # `checkpoint(block, x)` counts what is kept in there
            turn.due = turn.calls + 1
            return seen()
        self._under_way = True
        try:
            return self._checked(seen, alone, module, called, given, turn)
        finally:
            self._under_way = False

    def _checked(
        self, seen: Callable[[], Any], alone: Callable[[Any], Any], module: nn.Module, called: ModuleInfo, given: Any, turn: Turn
    ) -> Any:
        began = time.perf_counter()
        before = _before(module)
        whole = self._try_whole(alone, module, given, before)
        seconds = time.perf_counter() - began
        of_all = Exchange.objects((whole.given_up, whole.error is not None))
        if any(given_up for given_up, _ in of_all) or len({failed for _, failed in of_all}) > 1:
            turn.due = 2 * turn.calls
            self._say_unverified(module, next((given_up for given_up, _ in of_all if given_up), ""))
            return seen()
        if whole.error is not None:  # as one process would, all ranks fail: a part without the sample that is at fault would not
            return self._given_whole(seen, called)
        result, mine = self._try(seen, module, called, whole, before)
        began = time.perf_counter()
        of_ranks: list[SeenCall] = Exchange.objects(mine)
        found = verdict(of_ranks, whole)
        if found:
            found = found if self._is_certain(alone, module, given, before, whole) else ""
        elif mine.failed:
            raise RuntimeError("a model's call has failed on a rank")
        seconds += time.perf_counter() - began
        self.schedule.follow(turn, Exchange.objects((seconds, self.schedule.now())))
        if found:
            return self._mended(found, seen, module, called, before, whole, turn)
        turn.checked, turn.last = self._step(), turn.calls
        return result

    def _given_whole(self, seen: Callable[[], Any], called: ModuleInfo) -> Any:
        """Make one call on the whole batch, on every rank."""
        was, called.takes_batch_for_sequence = called.takes_batch_for_sequence, True
        try:
            return seen()
        finally:
            called.takes_batch_for_sequence = was

    def _say_unverified(self, module: nn.Module, why: str) -> None:
        if why == TOO_LARGE:
            self._say(f"The whole batch of `{type(module).__name__}` does not fit one engine, so its parts are not compared with it.")

    # -- the two computations ---------------------------------------------------------------------------------------

    def _try_whole(self, alone: Callable[[Any], Any], module: nn.Module, given: Any, before: StateBefore) -> WholeCall:
        """Return what the whole batch comes to; all is as before then. A collective."""
        whole = WholeCall()
        values = pytree.tree_map(self._plain, given)
        if before.reachable.obstacle:
            whole.given_up = before.reachable.obstacle
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

    def _try(
        self, seen: Callable[[], Any], module: nn.Module, called: ModuleInfo, whole: WholeCall, before: StateBefore
    ) -> tuple[Any, SeenCall]:
        """Make the call as always, and compare."""
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
            after = _before(module)
            try:
                with after.writes:  # a backward pass may compute activations again, and count them
                    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                    mine.gradients = self._gradients(module, tensors, scale=self._scale)
            finally:
                after.restore()
        return result, mine

    # -- what is made of it ---------------------------------------------------------------------------------------------

    def _is_certain(self, alone: Callable[[Any], Any], module: nn.Module, given: Any, before: StateBefore, whole: WholeCall) -> bool:
        """Return whether the whole batch comes to the same once more: where not even that is so, nothing is known. A collective."""
        if not all(Exchange.objects(before.can_restore())):
            return False
        after = _before(module)
        before.restore()
        again = self._try_whole(alone, module, given, before)
        after.restore()
        same = not again.given_up and again.error is None and len(again.results) == len(whole.results)
        same = same and not any(apart(*both) for both in zip(whole.results, again.results, strict=True))
        same = same and whole.changes.keys() == again.changes.keys()
        same = same and not any(apart(whole.changes[key][1], again.changes[key][1]) for key in whole.changes)
        return all(Exchange.objects(bool(same)))

    def _mended(
        self, found: str, seen: Callable[[], Any], module: nn.Module, called: ModuleInfo, before: StateBefore, whole: WholeCall, turn: Turn
    ) -> Any:
        """Make the call again, with the model whole, or go back where earlier calls may have been wrong as well."""
        kind = kind_of(type(module))
        others = [other for other in (self._turns.get(module) or {}).values() if other is not turn and other.calls > other.last]
        if others or turn.calls > turn.last + 1:
            unchecked = [*others, turn] if turn.calls > 1 else others
            raise GoBack((Finding(kind, found),), min(other.checked for other in unchecked))
        before.restore()
        if not called.is_open and found != GRADIENTS:  # those of an open model are not looked at
            called.is_open = True
            result, mine = self._try(seen, module, called, whole, before)
            if not verdict(Exchange.objects(mine), whole):
                turn.checked, turn.last = self._step(), turn.calls
                self._tell(kind, found, "runs like the cell's own code, on the whole batch,")
                return result
            before.restore()
        called.takes_batch_for_sequence = True
        turn.due = FAR
        self._tell(kind, found, "is given the whole batch, on every engine,")
        return seen()

    def _tell(self, kind: str, found: str, what: str) -> None:
        self._say(f"`{shown(kind)}` came to something else on parts of a batch ({found}) than on all of it: it {what} from here on.")


def _total_of(given: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    """Return of how many samples a batch is; what a model does on parts is found out for each number of them."""
    for value in (*given[0], *given[1].values()):
        if type(value) is GlobalTensor and isinstance(value.placement, Shard):
            return value.placement.share.total
    return 0


def _before(module: nn.Module) -> StateBefore:
    before = StateBefore([(f"`{type(module).__name__}`", module)])
    before.copy_statistics(module)
    return before
