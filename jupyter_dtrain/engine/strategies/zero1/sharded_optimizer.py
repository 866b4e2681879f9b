"""Optimizers of which each rank keeps a part: what it needs to update its own parameters.

The optimizers are those of the cell, wherever they were made, so PyTorch's classes are given another ``step`` for the time of the run: it
lets the optimizer see the parameters of this rank alone, and sends these to the others when they are updated. As each parameter is updated
by itself (:mod:`.partition`), what comes out is what comes out of updating all of them everywhere.

What the cell reads of an optimizer's state is whole: it is put together then, and a step later each rank is back to its part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ....system.patches import patched
from ...comm.collectives import exchange
from ...dedup import Apart
from ...module_tree import IdentityMap
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted
from .gather import Old, all_kept, fill, in_place_of, put_in_order, standing_in, state_of, way_of
from .partition import KINDS, Owners, Quiet, Step, has_known_step, has_parts, is_pytorchs, original_step, parameters_of, step_by

_AFTER_STEP = Optimizer._optimizer_step_code.__code__  # when it is called, profilers look at the state, each rank's or only one's


@dataclass
class _Parts:
    """How an optimizer is shared out: the number that all ranks have for it, and what of the notebook's this one has put aside."""

    number: int
    is_whole: bool = True  # this rank has all of it, for the moment
    is_as_it_came: bool = False  # nothing has changed it since it came from the notebook
    old: Old = field(default_factory=IdentityMap)
    order: list[int] = field(default_factory=list)  # of parameters by their `id`, when all of it was here last


class ShardedOptimizerStates:
    """The states of optimizers, shared out over the ranks.

    Parameters
    ----------
    rank, world_size : int
    say : callable
        Tells the user something.

    Attributes
    ----------
    are_home : bool
        Rank 0 has all of them, to take home.
    """

    def __init__(self, *, rank: int, world_size: int, say: Callable[[str], None]) -> None:
        self._rank, self._say = rank, say
        self._world_size = world_size
        self._owners = Owners(world_size)
        self._parts: IdentityMap[_Parts] = IdentityMap()
        self._count = 0
        self.quiet = Quiet()
        self.are_home = False

    def register(self, objects: Iterable[object]) -> None:
        """Let go of what other ranks keep of optimizers that came from the notebook, among `objects`."""
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
        """Know that all optimizers have been given their whole states."""
        for parts in self._parts.values():
            parts.is_whole, parts.is_as_it_came = True, False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Share out what optimizers keep, until the end of the ``with`` block."""
        with ExitStack() as stack:
            for kind in KINDS:
                if "step" in vars(kind) and is_pytorchs(vars(kind)["step"]):
                    stack.enter_context(patched(kind, "step", step_by(original_step(kind), self._step)))
            for name, instead in (("state_dict", self._state_dict), ("load_state_dict", self._load_state_dict)):
                stack.enter_context(patched(Optimizer, name, instead(getattr(Optimizer, name))))
            stack.enter_context(patched(Optimizer, "state", property(self._read, self._replaced), create=True))
            stack.callback(register_optimizer_step_pre_hook(self._note).remove)
            yield

    # -- a step ------------------------------------------------------------------------------------------------------

    def _step(self, original: Step, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if not has_parts(optimizer):
            self._give_up(optimizer)
            return original(optimizer, closure)
        loss = None
        if closure is not None:  # which is to find all parameters in the groups
            with torch.enable_grad():
                loss = closure()
        parts = self._parts.get(optimizer) or self._new_parts(optimizer)
        owners = self._owners.of(optimizer)
        if parts.is_whole:
            self._let_go(optimizer, parts)
        parts.is_as_it_came = False
        groups = optimizer.param_groups
        wholes = [group["params"] for group in groups]
        updated: list[dict[int, torch.Tensor]] = [{} for _ in range(self._world_size)]
        for parameter in (parameter for params in wholes for parameter in params):
            if parameter.grad is not None:
                updated[owners[id(parameter)]][id(parameter)] = parameter
        all_ranks_come()
        try:
            for group, params in zip(groups, wholes, strict=True):
                group["params"] = [parameter for parameter in params if owners[id(parameter)] == self._rank]
            optimizer.param_groups = [group for group in groups if group["params"]]
            if optimizer.param_groups:
                with self.quiet.on():
                    original(optimizer)
        finally:
            for group, params in zip(groups, wholes, strict=True):
                group["params"] = params
            optimizer.param_groups = groups
        with Counted(COMMUNICATION):
            self._send([list(of_rank.values()) for of_rank in updated])
        return loss

    def _send(self, updated: list[list[torch.Tensor]]) -> None:
        """Let all ranks have the parameters that each has updated."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            # Of what has its numbers in another order a copy goes. A view counts as its base: graphs notice that it has changed.
            flat = [[parameter.detach().reshape(-1).view(torch.uint8) for parameter in of_rank] for of_rank in updated]
            exchange(flat, device=way_of(parameter for of_rank in updated for parameter in of_rank))
            for rank, (of_rank, found) in enumerate(zip(updated, flat, strict=True)):
                for parameter, values in zip(of_rank, found, strict=True):
                    if rank != self._rank and not parameter.is_contiguous():
                        parameter.copy_(values.view(parameter.dtype).view(parameter.shape))

    def _note(self, optimizer: Optimizer, *_: object) -> None:
        if not has_known_step(optimizer):
            self._say(
                f"What `{type(optimizer).__name__}` keeps of its parameters is not shared out: `--strategy zero1` does so with optimizers "
                "of torch.optim that update each parameter by itself."
            )

    def _give_up(self, optimizer: Optimizer) -> None:
        """Let all ranks keep all of it again: it has come to have something that can be on one rank alone no more."""
        parts = self._parts.get(optimizer)
        if parts is not None:
            self._make_whole(optimizer, parts)
            self._parts.remove(optimizer)
        if has_known_step(optimizer):
            self._say(
                f"What `{type(optimizer).__name__}` keeps of its parameters is not shared out by `--strategy zero1`: some of these are not "
                "the same dense tensors on all engines, or its steps are differentiated."
            )

    # -- what is kept where ------------------------------------------------------------------------------------------

    def _new_parts(self, optimizer: Optimizer) -> _Parts:
        self._count += 1
        return self._parts.set(optimizer, _Parts(self._count))

    def _of_others(self, optimizer: Optimizer) -> list[torch.Tensor]:
        owners = self._owners.of(optimizer)  # what is in no group has none, and stays everywhere
        return [key for key in state_of(optimizer) if owners.get(id(key), self._rank) != self._rank]

    def _let_go(self, optimizer: Optimizer, parts: _Parts) -> None:
        state = state_of(optimizer)
        if parts.is_whole:
            parts.order = [*map(id, state)]
        for parameter in self._of_others(optimizer):
            del state[parameter]
        parts.is_whole = False

    def _make_whole(self, optimizer: Optimizer, parts: _Parts) -> None:
        if not parts.is_whole:
            kept = all_kept({parts.number: optimizer}, self._owners, rank=self._rank)
            fill(kept, rank=self._rank, reads=True, order=self._orders())
            parts.is_whole, parts.is_as_it_came = True, False

    def _there(self) -> dict[int, Optimizer]:
        """Return the optimizers that are shared out, by number, each with what it keeps of this rank alone."""
        return dict(sorted((parts.number, optimizer) for optimizer, parts in self._parts.items()))

    def _orders(self) -> dict[int, list[int]]:
        return {id(optimizer): parts.order for optimizer, parts in self._parts.items()}

    def _old(self) -> dict[int, Old]:
        return {id(optimizer): parts.old for optimizer, parts in self._parts.items()}

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Let rank 0 have all of it, to take it home, in the notebook's own tensors, and change nothing in the ``with`` block.

        A collective, and the last one that is about states.
        """
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
        """Let optimizers have what stands for their whole states, until the end of the ``with`` block. A collective."""
        optimizers = self._there()
        with self.quiet.on():
            kept = all_kept(optimizers, self._owners, rank=self._rank)
            with standing_in(kept, rank=self._rank, order=self._orders(), old=self._old()) as held:
                yield Apart(frozenset(map(id, optimizers.values())), tuple(held))

    def apart(self) -> Apart:
        """Return which optimizers are shared out."""
        return Apart(frozenset(map(id, self._there().values())))

    def state_dict(self) -> dict[int, dict[int, Any]]:
        """Return what this rank alone keeps, by the numbers of optimizers and the places of their parameters."""
        found: dict[int, dict[int, Any]] = {}
        for optimizer, parts in self._parts.items():
            if parts.is_whole or parts.is_as_it_came:
                continue
            state, owners = state_of(optimizer), self._owners.of(optimizer)
            own = {index: p for index, p in enumerate(parameters_of(optimizer)) if owners[id(p)] == self._rank and p in state}
            found[parts.number] = {index: state[parameter] for index, parameter in own.items()}
        return found

    def needs_others(self) -> bool:
        """Return whether other ranks have something that this one has not."""
        return not all(parts.is_whole or parts.is_as_it_came for parts in self._parts.values())

    def load_state_dicts(self, parts: Sequence[Mapping[int, Mapping[int, Any]]]) -> None:
        """Let this rank have what others had, as :meth:`part` of each of them has it; without these, what came from the notebook."""
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

    # -- what the cell reads -----------------------------------------------------------------------------------------

    def _read(self, optimizer: Optimizer) -> Any:
        state = vars(optimizer).get("state")
        if state is None:
            raise AttributeError(f"'{type(optimizer).__name__}' object has no attribute 'state'")
        if self.quiet.is_on:
            return state
        parts = self._parts.get(optimizer)
        if parts is not None and not parts.is_whole and sys._getframe(1).f_code is not _AFTER_STEP:
            self._make_whole(optimizer, parts)
        return state

    def _replaced(self, optimizer: Optimizer, state: Any) -> None:
        vars(optimizer)["state"] = state
        parts = self._parts.get(optimizer)
        if parts is not None:
            parts.is_whole, parts.is_as_it_came = True, False

    def _state_dict(self, original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @wraps(original)
        def state_dict(optimizer: Optimizer) -> dict[str, Any]:
            parts = self._parts.get(optimizer)
            has_been_read = parts is not None and parts.is_whole
            found = original(optimizer)  # which reads the state
            if parts is None:
                return found
            if not has_been_read:
                self._let_go(optimizer, parts)
            # The next step changes the rank's own tensors alone: what each has here is to be of now.
            stays = {id(kept) for kept in state_of(optimizer).values()}
            with torch._C.DisableTorchFunction(), torch.no_grad():
                found["state"] = {key: _copied(kept) if id(kept) in stays else kept for key, kept in found["state"].items()}
            return found

        return state_dict

    def _load_state_dict(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def load_state_dict(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            original(optimizer, state_dict)
            parts = self._parts.get(optimizer)
            if parts is not None:
                parts.is_whole, parts.is_as_it_came = True, False
                self._let_go(optimizer, parts)

        return load_state_dict


def _leave_device(kept: dict[Any, Any]) -> None:
    """Free the memory of a device that a state takes which others use; on the host it is that of what was sent, once for all ranks."""
    for value in kept.values():
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            value.data = value.data.cpu()


def _copied(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    return {key: value.clone() if type(value) is torch.Tensor else value for key, value in kept.items()}
