"""Optimizers with sharded state: each rank has the state of the parameters that it updates.

The optimizers are the cell's own objects, so ``step`` of PyTorch's classes is patched for the time of the run. The patched step lets the
optimizer see only the parameters that this rank owns, and sends these to the other ranks after the update. As each parameter is updated
independently (:mod:`.partition`), the result equals that of updating all of them on every rank.

When the cell reads the state of an optimizer it is gathered, until the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ....system.patches import patched
from ...dedup import Apart
from ...identity_map import IdentityMap
from ...timing import COMMUNICATION, Counted
from .gather import Old, all_kept, fill, in_place_of, put_in_order, standing_in, state_of
from .group_order import GroupOrder
from .own_step import StepErrors, send, step_own
from .partition import KINDS, Owners, Quiet, Step, has_known_step, has_parts, is_pytorchs, original_step, parameters_of, step_by
from .state_access import OptimizerParts, StateAccess


class ShardedOptimizerStates:
    """The state of all optimizers, sharded over the ranks.

    Parameters
    ----------
    rank, world_size : int
    say : callable
        Tells the user something.
    models : callable
        Returns the modules of the run, in an order that all ranks have.

    Attributes
    ----------
    are_home : bool
        Rank 0 has all of them, to take home.
    """

    def __init__(self, *, rank: int, world_size: int, say: Callable[[str], None], models: Callable[[], Iterable[nn.Module]]) -> None:
        self._rank, self._say = rank, say
        self._order = GroupOrder(models, strategy="zero1")
        self._world_size = world_size
        self._owners = Owners(world_size)
        self._parts: IdentityMap[OptimizerParts] = IdentityMap()
        self._count = 0
        self.quiet = Quiet()
        self._errors = StepErrors()
        self.are_home = False

    def register(self, objects: Iterable[object]) -> None:
        """Drop the state that other ranks have, of the optimizers among `objects` that came from the notebook."""
        for optimizer in objects:
            if isinstance(optimizer, Optimizer) and vars(optimizer).get("state") and has_parts(optimizer):
                parts, state = self._new_parts(optimizer), state_of(optimizer)
                for parameter in self._of_others(optimizer):
                    kept = state[parameter]
                    if type(kept) is dict:
                        parts.old.set(parameter, kept)
                        _leave_device(kept)
                parts.is_as_it_came = all(type(kept) is dict for kept in state.values())
                self._let_go(optimizer, parts)

    def restored(self) -> None:
        """Note that all optimizers have been given full state."""
        for parts in self._parts.values():
            parts.is_whole, parts.is_as_it_came = True, False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Shard optimizer state in the ``with`` block."""
        with ExitStack() as stack:
            for kind in KINDS:
                if "step" in vars(kind) and is_pytorchs(vars(kind)["step"]):
                    stack.enter_context(patched(kind, "step", step_by(original_step(kind), self._step)))
            access = StateAccess(self._parts, self.quiet, make_whole=self._make_whole, let_go=self._let_go)
            stack.enter_context(access.installed())
            stack.callback(register_optimizer_step_pre_hook(self._note).remove)
            yield

    # -- a step ------------------------------------------------------------------------------------------------------

    def _step(self, original: Step, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        self._errors.check()
        if not has_parts(optimizer):
            self._give_up(optimizer)
            return original(optimizer, closure)
        loss = None
        if closure is not None:  # which is to find all parameters in the groups
            with torch.enable_grad():
                loss = closure()
        parts = self._parts.get(optimizer) or self._new_parts(optimizer)
        self._order.agree(optimizer)
        owners = self._owners.of(optimizer)
        if parts.is_whole:
            self._let_go(optimizer, parts)
        parts.is_as_it_came = False
        parts.note_step(parameters_of(optimizer))
        with self._errors.agreed():
            updated = step_own(original, optimizer, owners, rank=self._rank, world_size=self._world_size, quiet=self.quiet)
        with Counted(COMMUNICATION):
            send(updated, rank=self._rank)
        return loss

    def _note(self, optimizer: Optimizer, *_: object) -> None:
        if not has_known_step(optimizer):
            self._say(
                f"The state of `{type(optimizer).__name__}` is not sharded: `--strategy zero1` shards it for optimizers "
                "of torch.optim that update each parameter independently."
            )

    def _give_up(self, optimizer: Optimizer) -> None:
        """Replicate the state of an optimizer again: it can no longer be sharded."""
        parts = self._parts.get(optimizer)
        if parts is not None:
            self._make_whole(optimizer, parts)
            self._parts.remove(optimizer)
        if has_known_step(optimizer):
            self._say(
                f"The state of `{type(optimizer).__name__}` is not sharded by `--strategy zero1`: some of its parameters are not "
                "the same dense tensors on all engines, or its steps are differentiable."
            )

    # -- what is kept where ------------------------------------------------------------------------------------------

    def _new_parts(self, optimizer: Optimizer) -> OptimizerParts:
        self._count += 1
        return self._parts.set(optimizer, OptimizerParts(self._count))

    def _of_others(self, optimizer: Optimizer) -> list[torch.Tensor]:
        owners = self._owners.of(optimizer)  # what is in no group has none, and stays everywhere
        return [key for key in state_of(optimizer) if owners.get(id(key), self._rank) != self._rank]

    def _let_go(self, optimizer: Optimizer, parts: OptimizerParts) -> None:
        state = state_of(optimizer)
        if parts.is_whole:
            parts.order = [*map(id, state)]
        for parameter in self._of_others(optimizer):
            del state[parameter]
        parts.is_whole = False

    def _make_whole(self, optimizer: Optimizer, parts: OptimizerParts) -> None:
        self._errors.check()
        if not parts.is_whole:
            self._order.agree(optimizer)
            kept = all_kept({parts.number: optimizer}, self._owners, rank=self._rank)
            fill(kept, rank=self._rank, reads=True, order=self._orders())
            parts.is_whole, parts.is_as_it_came = True, False

    def _there(self) -> dict[int, Optimizer]:
        """Return the sharded optimizers, by number, each with the state of this rank."""
        return dict(sorted((parts.number, optimizer) for optimizer, parts in self._parts.items()))

    def _orders(self) -> dict[int, list[int]]:
        return {id(optimizer): parts.order for optimizer, parts in self._parts.items()}

    def _old(self) -> dict[int, Old]:
        return {id(optimizer): parts.old for optimizer, parts in self._parts.items()}

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the full state on rank 0, in the notebook's own tensors, to return it; nothing changes it in the ``with`` block.

        A collective, and the last one that is about states.
        """
        self._errors.check()
        reads, changed = self._rank == 0, {}
        for number, optimizer in self._there().items():
            parts = self._parts.get(optimizer)
            if parts is not None and parts.is_as_it_came:
                state_of(optimizer).update(parts.old.items())
                put_in_order(optimizer, parts.order)
            elif parts is not None:
                changed[number] = optimizer
                self._let_go(optimizer, parts)
        kept = all_kept(changed, self._owners, rank=self._rank)
        fill(kept, rank=self._rank, reads=reads, order=self._orders(), old=self._old())
        self.are_home = True
        with self.quiet.on():
            yield

    @contextmanager
    def for_snapshot(self) -> Iterator[Apart]:
        """Put placeholders for full state into optimizers, in the ``with`` block. Collective."""
        self._errors.check()
        optimizers = self._there()
        for optimizer in optimizers.values():
            self._order.agree(optimizer)
        with self.quiet.on():
            kept = all_kept(optimizers, self._owners, rank=self._rank)
            with standing_in(kept, rank=self._rank, order=self._orders(), old=self._old()) as held:
                yield Apart(frozenset(map(id, optimizers.values())), tuple(held))

    def apart(self) -> Apart:
        """Return the sharded optimizers."""
        return Apart(frozenset(map(id, self._there().values())))

    def state_dict(self) -> dict[int, dict[int, Any]]:
        """Return the state that this rank alone has, by the numbers of optimizers and the positions of their parameters."""
        found: dict[int, dict[int, Any]] = {}
        for optimizer, parts in self._parts.items():
            if parts.is_whole or parts.is_as_it_came:
                continue
            state, owners = state_of(optimizer), self._owners.of(optimizer)
            own = {index: p for index, p in enumerate(parameters_of(optimizer)) if owners[id(p)] == self._rank and p in state}
            found[parts.number] = {index: state[parameter] for index, parameter in own.items()}
        return found

    def needs_others(self) -> bool:
        """Return whether other ranks have state that this one does not have."""
        return not all(parts.is_whole or parts.is_as_it_came for parts in self._parts.values())

    def load_state_dicts(self, parts: Sequence[Mapping[int, Mapping[int, Any]]]) -> None:
        """Restore the state that other ranks had from their :meth:`part`, or without these, the state that came from the notebook."""
        for optimizer, own in self._parts.items():
            if own.is_whole:
                continue
            self._let_go(optimizer, own)  # an exchange that was broken off has left what is undefined
            state, of = state_of(optimizer), parameters_of(optimizer)
            if not parts or own.is_as_it_came:
                state.update(own.old.items())
            else:
                for index, kept in (item for part in parts for item in part.get(own.number, {}).items()):
                    old = own.old.get(of[index])
                    state[of[index]] = kept if old is None else in_place_of(old, kept)
            put_in_order(optimizer, own.order)


def _leave_device(kept: dict[Any, Any]) -> None:
    """Free the device memory of state that another rank uses. On the CPU it is memory of what was sent, shared by all ranks."""
    for value in kept.values():
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            value.data = value.data.cpu()
