"""The cell's view of an optimizer with sharded state: it reads and sets full state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer

from ....system.patches import patched
from ...identity_map import IdentityMap
from .gather import Old, state_of
from .partition import Quiet

_AFTER_STEP = Optimizer._optimizer_step_code.__code__  # when it is called, profilers look at the state, each rank's or only one's


@dataclass
class OptimizerParts:
    """An optimizer with sharded state: its number, the same on all ranks, and the notebook's state that this rank has put aside."""

    number: int
    is_whole: bool = True  # this rank has all of it, for the moment
    is_as_it_came: bool = False  # nothing has changed it since it came from the notebook
    old: Old = field(default_factory=IdentityMap)
    order: list[int] = field(default_factory=list)  # of parameters by their `id`, as they have come to have state

    def note_step(self, parameters: Sequence[torch.Tensor]) -> None:
        """Note which of `parameters`, in the order of their groups, a step updates for the first time: these get state after the others."""
        known = set(self.order)
        self.order += [id(parameter) for parameter in parameters if parameter.grad is not None and id(parameter) not in known]


class StateAccess:
    """Replaces ``Optimizer.state``, ``state_dict`` and ``load_state_dict``.

    Parameters
    ----------
    parts : IdentityMap of OptimizerParts
        Of the optimizers that are shared out.
    quiet : Quiet
        Whether it is not the cell that reads.
    make_whole, let_go : callable
        Let this rank have all of the state of one, a collective, and its own part alone.
    """

    def __init__(
        self,
        parts: IdentityMap[OptimizerParts],
        quiet: Quiet,
        *,
        make_whole: Callable[[Optimizer, OptimizerParts], None],
        let_go: Callable[[Optimizer, OptimizerParts], None],
    ) -> None:
        self._parts, self._quiet, self._make_whole, self._let_go = parts, quiet, make_whole, let_go

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace them in the ``with`` block."""
        with ExitStack() as stack:
            for name, instead in (("state_dict", self._state_dict), ("load_state_dict", self._load_state_dict)):
                stack.enter_context(patched(Optimizer, name, instead(getattr(Optimizer, name))))
            stack.enter_context(patched(Optimizer, "state", property(self._read, self._replaced), create=True))
            yield

    def _read(self, optimizer: Optimizer) -> Any:
        state = vars(optimizer).get("state")
        if state is None:
            raise AttributeError(f"'{type(optimizer).__name__}' object has no attribute 'state'")
        if self._quiet.is_on:
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


def _copied(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    return {key: value.clone() if type(value) is torch.Tensor else value for key, value in kept.items()}
