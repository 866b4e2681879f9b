"""Parameters that each rank steps by itself, and their gradients of its own part of a batch: which these are, and who sees them.

A parameter is *ahead* from a step of the rank's own until it is averaged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...backward.backward_pass import BackwardPass
from ...forward.model_call import ModelCalls
from ...forward.sharded_call import ShardedCall
from ...module_tree import parameters_in
from ...tensor.placement_types import GlobalTensor
from ..zero3.eligibility import why_replicated
from ..zero3.sharded_rows import quiet
from .local_parameter import LocalParameter, plain
from .parameter_means import ModelNote, Note, ParameterMeans, any_rank


class LocalParameters(ParameterMeans):
    """Those of one rank, as `ModelCalls` and `GradientSync` know them.

    Parameters
    ----------
    models : ModelCalls
    full_tensor : callable
        Returns a tensor that spans the ranks as a whole.
    homes, say
        As of :class:`ParameterMeans`.
    """

    def __init__(
        self, models: ModelCalls, *, homes: frozenset[int], full_tensor: Callable[[torch.Tensor], torch.Tensor], say: Callable[[str], None]
    ) -> None:
        super().__init__(homes=homes, say=say)
        self._models, self._full_tensor = models, full_tensor
        self._depth = 0  # of calls of models
        self._was_open = False  # there was a graph to be gone through when the cell called a model

    # -- calls of models ---------------------------------------------------------------------------------------------

    def adopt(self, module: nn.Module) -> None:
        """Let ranks step on the parameters of `module` by themselves. Collective."""
        others = why_replicated(module, follows_writes=True)
        found = [p for p in parameters_in(module) if self._notes.get(p) is None and id(p) not in others and _may_be_local(p)]
        if others:
            self._say(f"`--sync-every` averages the gradients of {len(others)} parameters in every step: {next(iter(others.values()))}.")
        if not found:
            return
        self._num_models += 1
        model = ModelNote(self._num_models)
        held = any_rank([self._is_held(parameter) for parameter in found])
        for parameter, is_held in zip(found, held, strict=True):
            self._count += 1
            note = self._notes.set(parameter, Note(self._count, model, is_lent=is_held))
            if parameter.grad is not None:
                note.handed = weakref.ref(parameter.grad)
            if LocalParameter.looked is not None:
                parameter.__class__ = LocalParameter

    def before_call(self, module: nn.Module) -> None:
        """Average what is ahead where an evaluation begins, or where the cell will look at it between the call and the backward pass."""
        found = [(p, note) for p in parameters_in(module) if (note := self._notes.get(p)) is not None]
        whole = not torch.is_grad_enabled()
        self._was_open = self._models.graph_open
        if whole and self._models.graph_open:
            self._before_each_call([note for _, note in found])
        self.average([parameter for parameter, note in found if whole or note.model.each_call])

    def calling(self) -> AbstractContextManager[None]:
        """Let a model be called by the cell."""
        return nullcontext()

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a module: on the rank's part of a batch with its own parameters, on anything else with what all ranks have."""
        if self._depth:
            return original(module, *args, **kwargs)
        parameters = [parameter for parameter in parameters_in(module) if self._notes.get(parameter) is not None]
        if self._models.parts.current is None:
            if self._was_open:  # the next time before the graph that is there
                self._before_each_call([*filter(None, map(self._notes.get, parameters))])
            self.average(parameters)
        self._depth += 1
        try:
            with plain(parameters):
                return original(module, *args, **kwargs)
        finally:
            self._depth -= 1

    def _before_each_call(self, notes: Sequence[Note]) -> None:
        """Average the parameters of models before each of their calls from now on: a graph that has them is not to see it."""
        if not all(note.model.each_call for note in notes):
            self._say(
                "`--sync-every` averages parameters in every step, as the cell reads them between a model's call and the backward pass"
            )
        for note in notes:
            note.model.each_call = True

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return what computes a later call: the model itself."""
        return sharded.own_call

    def on_full_batch(self, module: nn.Module) -> None:
        """Be told of an open model, whose code is like the cell's."""

    # -- backward passes ---------------------------------------------------------------------------------------------

    def begins(self, one: BackwardPass) -> None:
        """Be told of a pass: one whose gradients have a graph adds to those of all ranks."""
        if one.creates_graph:
            self.reduce_gradients(self.all())

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return `one`: each rank runs its own."""
        return one

    def among(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `leaves` whose gradients stay the rank's own: not where somebody sees them."""
        with plain(leaves):
            return [leaf for leaf in leaves if (note := self._notes.get(leaf)) is not None and _is_unseen(leaf, note)]

    @contextmanager
    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> Iterator[Callable[[], None]]:  # noqa: ARG002
        """Leave the gradients of `wanted` as the pass makes them, until the end of the ``with`` block."""
        with plain(self.all()):  # blocks may be computed again
            yield lambda: None
        for leaf in wanted:
            if (note := self._notes.get(leaf)) is not None:
                note.is_graded = True

    # -- what the cell looks at --------------------------------------------------------------------------------------

    def look(self, parameters: Iterable[torch.Tensor], *, lends: bool) -> None:
        """Let the cell look at parameters, which are averaged before, with those of their models. Collective, if they are ahead."""
        notes = [note for parameter in parameters if (note := self._notes.get(parameter)) is not None]
        if self._models.graph_open:
            self._before_each_call(notes)
        models = {note.model.number for note in notes if note.is_ahead}
        if models:
            self._say("`--sync-every` averages parameters where the cell reads them")
            self.average(self._common(lambda note: note.model.number in models))
        for note in notes:
            note.is_lent |= lends

    def gradient(self, func: Any, access: str, parameter: torch.Tensor, *value: Any) -> Any:
        """Read, set or delete ``parameter.grad``. Collective, if it is of this rank's part of a batch and is read."""
        note = self._notes.get(parameter)
        if note is None:
            with quiet():
                return func(parameter, *value)
        if access == "__get__":
            if note.is_graded:
                self._say("`--sync-every` averages gradients where the cell reads them")
                model = note.model.number
                self.reduce_gradients(self._common(lambda note: note.model.number == model))
            with quiet():
                found = func(parameter)
            note.handed = _reference(found)
            return found
        new = value[0] if access == "__set__" else None
        if isinstance(new, GlobalTensor):
            new = self._full_tensor(new)
        note.is_graded, note.handed = False, _reference(new)
        with quiet():
            return func(parameter, new) if access == "__set__" else func(parameter)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> list[tuple[Any, ...]]:
        """Return what is known of the parameters, none of which is ahead."""
        found = []
        with quiet():
            for p, note in self._notes.items():
                is_handed = p.grad is not None and p.grad is note.handed()
                found.append(
                    (p, note.number, note.model.number, note.model.each_call, note.is_graded, note.has_own_state, note.is_lent, is_handed)
                )
        return found

    def load_state_dict(self, state: Iterable[tuple[Any, ...]]) -> None:
        """Go on from a :meth:`state_dict`."""
        models: dict[int, ModelNote] = {}
        for parameter, number, model, each_call, is_graded, has_own_state, is_lent, is_handed in state:
            of = models.setdefault(model, ModelNote(model, each_call))
            note = Note(number, of, is_graded=is_graded, has_own_state=has_own_state, is_lent=is_lent)
            if is_handed:
                note.handed = _reference(parameter.grad)
            self._notes.set(parameter, note)
            self._count, self._num_models = max(self._count, number), max(self._num_models, model)


def _may_be_local(parameter: torch.Tensor) -> bool:
    kind: Any = type(parameter)
    if kind is not nn.Parameter or is_lazy(parameter) or parameter.layout != torch.strided or not parameter.is_floating_point():
        return False
    return parameter.is_leaf and (
        parameter.grad is None or (type(parameter.grad) is torch.Tensor and parameter.grad.layout == torch.strided)
    )


def _is_unseen(leaf: torch.Tensor, note: Note) -> bool:
    if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
        return False
    return leaf.grad is None or (type(leaf.grad) is torch.Tensor and leaf.grad is not note.handed())


def _reference(gradient: Any) -> Callable[[], torch.Tensor | None]:
    return (lambda: None) if gradient is None else weakref.ref(gradient)
