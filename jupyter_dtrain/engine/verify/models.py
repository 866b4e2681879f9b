"""Compares calls of models on a shard of the batch with the same call on the full batch.

At a checked call each rank first computes the full batch, as one process would: from the same state, with the same random numbers, and
restores the state. Then it makes the call on its shard. Compared are the rows of the results, the state that the call leaves in everything
that the model can reach, and its gradients, projected on two directions of the parameters for one of the results. If something differs by
more than rounding, and a second computation of the full batch does not differ, the state is restored. The model's `forward` then runs like
the cell's own code, or, if that differs too, on the full batch on every rank. So the wrong numbers of the call have not been used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..forward.known_models import ModuleInfo
from ..identity_map import IdentityMap
from ..module_tree import layers_taking_statistics
from ..tensor.placement_types import GlobalTensor, Shard
from ..tensor.recompute import BackwardPasses
from ..tensor.redistribute import Exchange
from .compared_call import TOO_LARGE, ComparedCall, state_before
from .gradient_probes import has_compiled
from .noted_state import StateBefore
from .report import Finding, GoBack, kind_of, shown
from .schedule import FAR, Schedule, Turn
from .verdict import GRADIENTS, SeenCall, WholeCall, verdict

MOST_KINDS = 8
"""Number of batch sizes for which the first call of a model is checked, in training and in evaluation; of others, a later one is."""

PASSES = 6
"""Forward passes that a check costs, of the full batch and again of the shard: results, and gradients, each of twice that."""


class ModelChecks:
    """Checks calls of models.

    Parameters
    ----------
    passes : BackwardPasses
    scale : float
        Factor by which gradients are larger in the backward pass.
    statistics_per_rank, draws_per_rank : bool
        Whether models take statistics, or draw, for each rank's shard separately.
    whole : iterable of str
        Names of classes of models that are not given a shard.
    say : callable
        Shows a note to the user.
    step : callable
        Returns the number of steps so far.
    schedule : Schedule
    """

    def __init__(
        self,
        *,
        passes: BackwardPasses,
        scale: float,
        statistics_per_rank: bool,
        draws_per_rank: bool,
        whole: Iterable[str] = (),
        say: Callable[[str], None],
        step: Callable[[], int],
        schedule: Schedule,
    ) -> None:
        self._scale_of_cost = PASSES * (scale + 1)
        self._computed = ComparedCall(passes=passes, scale=scale, draws_per_rank=draws_per_rank)
        self._say, self._step, self._statistics_per_rank = say, step, statistics_per_rank
        self.schedule = schedule
        self._turns: IdentityMap[dict[tuple[bool, int], Turn]] = IdentityMap()
        self._turn = Turn()  # of the call that is made now
        self._whole = frozenset(whole)
        self._under_way = False

    def is_due(self, module: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
        """Count a call of `module`, and return whether it is to be checked."""
        if self._under_way:
            return False
        turns = self._turns.get(module) or self._turns.set(module, {})
        kind = module.training, _total_of(given)
        turn = turns.get(kind)
        if turn is None:
            turn = turns[kind] = self.schedule.new_turn(due=1 if len(turns) < MOST_KINDS else MOST_KINDS)
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
            Makes the call on the rank's shard.
        alone : callable
            Calls the model with plain arguments, as one process does.
        module : nn.Module
        called : ModuleInfo
            What is known of the module; here it is noted if it must not be given a shard.
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
        if not turn.is_open and turn.seconds is None:
            return self._timed(seen, turn)
        if not turn.is_open and not self._opens(turn):
            return seen()
        self._under_way = True
        try:
            return self._checked(seen, alone, module, called, given, turn)
        finally:
            self._under_way = False

    def _opens(self, turn: Turn) -> bool:
        """Return whether the first check of a kind of call, of which one was measured, is made now. Collective."""
        assert turn.seconds is not None
        # Another size of batch would be compiled anew, and later calls might run what is compiled for both. Engines may differ in this.
        own = self.schedule.estimate(turn.seconds * self._scale_of_cost, is_allowed=not has_compiled())
        return self.schedule.opens(turn, Exchange.objects(own))

    @staticmethod
    def _timed(seen: Callable[[], Any], turn: Turn) -> Any:
        """Make a call that is not checked, and measure it."""
        turn.due = turn.calls + 1
        _synchronize()
        began = time.perf_counter()
        result = seen()
        _synchronize()
        turn.seconds = time.perf_counter() - began
        return result

    def _checked(
        self, seen: Callable[[], Any], alone: Callable[[Any], Any], module: nn.Module, called: ModuleInfo, given: Any, turn: Turn
    ) -> Any:
        began = time.perf_counter()
        before = state_before(module)
        whole = self._computed.whole(alone, module, given, before)
        seconds = time.perf_counter() - began
        of_all = Exchange.objects((whole.given_up, whole.error is not None))
        if any(given_up for given_up, _ in of_all) or len({failed for _, failed in of_all}) > 1:
            turn.due = 2 * turn.calls
            self._say_unverified(module, next((given_up for given_up, _ in of_all if given_up), ""))
            return seen()
        if whole.error is not None:  # as one process would, all ranks fail: a part without the sample that is at fault would not
            return self._given_whole(seen, called)
        result, mine = self._computed.parts(seen, module, called, whole, before)
        began = time.perf_counter()
        of_ranks: list[SeenCall] = Exchange.objects(mine)
        found = verdict(of_ranks, whole)
        if found:
            found = found if self._computed.is_certain(alone, module, given, before, whole) else ""
        elif mine.failed:
            raise RuntimeError("a model's call has failed on a rank")
        seconds += time.perf_counter() - began
        self.schedule.follow(turn, Exchange.objects((seconds, self.schedule.now())))
        if found:
            return self._mended(found, seen, module, called, before, whole, turn)
        turn.checked, turn.last = self._step(), turn.calls
        return result

    def _given_whole(self, seen: Callable[[], Any], called: ModuleInfo) -> Any:
        """Make one call on the full batch, on every rank."""
        was, called.takes_batch_for_sequence = called.takes_batch_for_sequence, True
        try:
            return seen()
        finally:
            called.takes_batch_for_sequence = was

    def _say_unverified(self, module: nn.Module, why: str) -> None:
        if why == TOO_LARGE and self.schedule.is_asked_for:
            self._say(f"The whole batch of `{type(module).__name__}` does not fit one engine, so its parts are not compared with it.")

    def _mended(
        self, found: str, seen: Callable[[], Any], module: nn.Module, called: ModuleInfo, before: StateBefore, whole: WholeCall, turn: Turn
    ) -> Any:
        """Make the call again on the full batch, or go back if earlier calls may have been wrong, too."""
        kind = kind_of(type(module))
        others = [other for other in (self._turns.get(module) or {}).values() if other is not turn and other.calls > other.last]
        if others or turn.calls > turn.last + 1:
            unchecked = [*others, turn] if turn.calls > 1 else others
            raise GoBack((Finding(kind, found),), min(other.checked for other in unchecked))
        before.restore()
        if not called.is_open and found != GRADIENTS:  # those of an open model are not looked at
            called.is_open = True
            result, mine = self._computed.parts(seen, module, called, whole, before)
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
        self._say(f"`{shown(kind)}` gave another result on parts of a batch ({found}) than on all of it: it {what} from here on.")


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _total_of(given: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    """Return the number of samples of a batch: each number is checked separately."""
    for value in (*given[0], *given[1].values()):
        if type(value) is GlobalTensor and isinstance(value.placement, Shard):
            return value.placement.share.total
    return 0
