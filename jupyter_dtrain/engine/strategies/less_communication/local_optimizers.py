"""Let optimizers step on the gradient of the rank's share of a batch, with optimizer state of the rank's own.

Only parameters are averaged, every N steps of an optimizer, as in Lin et al., "Don't use large mini-batches, use local SGD", and in
PyTorch's ``PostLocalSGDOptimizer``. If the cell reads an optimizer's state, and when it is returned, it is the mean over ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ....system.patches import patched
from ...backward.gradient_exchange import average
from ...comm.batch_ranks import batch_memory
from ...identity_map import IdentityMap
from ...tensor import agreed
from ...tensor.caught import may_be_caught
from ...timing import COMMUNICATION, Counted
from ..zero1.partition import KINDS, Quiet, Step, has_step_of, is_pytorchs, original_step, parameters_of, step_by
from .local_parameter import plain
from .parameter_means import ParameterMeans, any_rank

_AFTER_STEP = Optimizer._optimizer_step_code.__code__  # while this runs, profilers read the state
_FAILED = 0x4F505449
"""Tag of the exchange after a step that has failed."""


@dataclass(eq=False)
class Stepped:
    """Record of an optimizer: its number, equal on all ranks, its steps since the last average, and whether the cell holds its state."""

    number: int
    steps: int = 0
    is_lent: bool = False


class LocalOptimizers:
    """The optimizers of one rank.

    Parameters
    ----------
    every : int
        Steps between two averages.
    parameters : ParameterMeans
    say : callable
        Shows the user a message, with the place in the cell.
    """

    def __init__(self, every: int, parameters: ParameterMeans, say: Callable[[str], None]) -> None:
        self._every, self._parameters, self._say = every, parameters, say
        self._of: IdentityMap[Stepped] = IdentityMap()
        self._count = 0
        self._kinds: set[type[Any]] = set()  # classes whose `step` is patched
        self.quiet = Quiet()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Patch optimizers so that steps are the rank's own, until the end of the ``with`` block."""
        with ExitStack() as stack:
            for kind in KINDS:
                if "step" in vars(kind) and is_pytorchs(vars(kind)["step"]):
                    self._kinds.add(kind)
                    stack.enter_context(patched(kind, "step", step_by(original_step(kind), self._step)))
            stack.enter_context(patched(Optimizer, "state_dict", self._state_dict(Optimizer.state_dict)))
            stack.enter_context(patched(Optimizer, "load_state_dict", self._load_state_dict(Optimizer.load_state_dict)))
            stack.enter_context(patched(Optimizer, "state", property(self._read, self._replaced), create=True))
            stack.callback(register_optimizer_step_pre_hook(self._before_other).remove)
            yield

    # -- a step ------------------------------------------------------------------------------------------------------

    def _step(self, original: Step, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if not has_step_of(optimizer, self._kinds):
            return original(optimizer, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = parameters_of(optimizer)
        try:
            with plain(parameters), self.quiet.on():
                original(optimizer)
        except Exception as error:
            if may_be_caught():
                self._average_after(error, optimizer, parameters)
            raise
        if self._are_ahead(parameters):
            self._stepped(optimizer, parameters)
        return loss

    def _average_after(self, error: Exception, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        """Average what a step has updated before an error, as the cell may read it. Collective: ranks without the error are elsewhere."""
        agreed.note(error)
        memory = batch_memory()
        if memory is not None:
            memory.barrier(_FAILED)
        if self._are_ahead(parameters):
            self._parameters.average(parameters)
            self._average_state(optimizer)

    def _are_ahead(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Note that a step has updated parameters by gradients of the rank's own; return whether there are any such."""
        is_ahead = False
        for note in map(self._parameters.note_of, parameters):
            if note is not None and (note.is_graded or note.has_own_state):
                note.has_own_state = note.is_ahead = is_ahead = True
        return is_ahead

    def _stepped(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        of = self._of.get(optimizer) or self._known(optimizer)
        of.steps += 1
        if of.steps >= self._every:
            of.steps = 0
            self._parameters.average(parameters)
        else:
            self._parameters.average_held(parameters)
        if of.is_lent:
            self._average_state(optimizer)

    def _known(self, optimizer: Optimizer) -> Stepped:
        self._count += 1
        return self._of.set(optimizer, Stepped(self._count))

    def _before_other(self, optimizer: Optimizer, *_: object) -> None:
        """Average parameters and gradients before the step of an unsupported optimizer, whose decisions may depend on them."""
        if has_step_of(optimizer, self._kinds):
            return
        parameters = parameters_of(optimizer)
        if any(self._parameters.note_of(parameter) is not None for parameter in parameters):
            self._say(f"`--sync-every` averages gradients in every step of `{type(optimizer).__name__}`, which it does not support")
        self._parameters.average(parameters)
        self._parameters.reduce_gradients(parameters)

    # -- what it keeps -----------------------------------------------------------------------------------------------

    def _average_state(self, optimizer: Optimizer) -> None:
        """Average an optimizer's state of its parameters. Collective, if ranks have state of their own."""
        parameters, state = parameters_of(optimizer), vars(optimizer)["state"]
        notes = [self._parameters.note_of(parameter) for parameter in parameters]
        own = [parameter for parameter, note in zip(parameters, notes, strict=True) if note is not None and note.has_own_state]
        if not own:
            return
        with plain(own):
            lacking = any_rank([not isinstance(state.get(parameter), dict) for parameter in own])
            found: list[torch.Tensor] = []
            for parameter, lacks in zip(own, lacking, strict=True):
                if lacks:  # some rank's share has never reached the parameter
                    state.pop(parameter, None)
                else:
                    values = state[parameter].values()
                    found += [value for value in values if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point()]
        with torch.no_grad(), Counted(COMMUNICATION):
            average(found)
        for parameter in own:
            note = self._parameters.note_of(parameter)
            if note is not None and not note.is_ahead:
                note.has_own_state = False

    def finish(self) -> None:
        """Average the state of all optimizers. Collective."""
        there = {of.number: optimizer for optimizer, of in self._of.items()}
        for number, lacks in enumerate(any_rank([number not in there for number in range(1, self._count + 1)]), 1):
            if not lacks:
                self._average_state(there[number])

    def _read(self, optimizer: Optimizer) -> Any:
        state = vars(optimizer).get("state")
        if state is None:
            raise AttributeError(f"'{type(optimizer).__name__}' object has no attribute 'state'")
        of = self._of.get(optimizer)
        if of is not None and not self.quiet.is_on and sys._getframe(1).f_code is not _AFTER_STEP:
            self._average_state(optimizer)
            of.is_lent = True
        return state

    def _replaced(self, optimizer: Optimizer, state: Any) -> None:
        vars(optimizer)["state"] = state

    def _state_dict(self, original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @wraps(original)
        def state_dict(optimizer: Optimizer) -> dict[str, Any]:
            if self._of.get(optimizer) is None or self.quiet.is_on:
                return original(optimizer)
            self._average_state(optimizer)
            with plain(parameters_of(optimizer)), self.quiet.on():
                found = original(optimizer)
            # The next step changes the rank's tensors, and the cell's state dict must not change.
            found["state"] = {key: _copied(kept) for key, kept in found["state"].items()}
            return found

        return state_dict

    def _load_state_dict(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def load_state_dict(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            with self.quiet.on():
                original(optimizer, state_dict)
            for note in map(self._parameters.note_of, parameters_of(optimizer)):
                if note is not None:
                    note.has_own_state = False

        return load_state_dict

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> list[tuple[Optimizer, int, int, bool]]:
        """Return the records of the optimizers."""
        return [(optimizer, of.number, of.steps, of.is_lent) for optimizer, of in self._of.items()]

    def load_state_dict(self, state: Iterable[tuple[Optimizer, int, int, bool]]) -> None:
        """Resume from a :meth:`state_dict`."""
        for optimizer, number, steps, is_lent in state:
            self._of.set(optimizer, Stepped(number, steps, is_lent))
            self._count = max(self._count, number)


def _copied(kept: Any) -> Any:
    if not isinstance(kept, dict):
        return kept
    return {key: value.clone() if type(value) is torch.Tensor else value for key, value in kept.items()}
