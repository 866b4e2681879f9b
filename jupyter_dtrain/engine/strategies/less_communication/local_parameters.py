"""Track the parameters on which each rank steps locally, and their gradients of the rank's share of a batch.

A parameter is *ahead* from a local step until it is averaged.
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
from ...backward.failed_pass import Noted, has_come_to, noted
from ...forward.model_call import ModelCalls
from ...forward.sharded_call import ShardedCall
from ...module_tree import parameters_in
from ...tensor.placement_types import GlobalTensor
from ...tensor.redistribute import Exchange
from ..zero3.eligibility import why_replicated
from ..zero3.sharded_rows import quiet
from .local_parameter import LocalParameter, plain
from .parameter_means import ModelNote, Note, ParameterMeans, any_rank


class LocalParameters(ParameterMeans):
    """Local parameters of one rank, with the interface that `ModelCalls` and `GradientSync` expect.

    Parameters
    ----------
    models : ModelCalls
    full_tensor : callable
        Returns the full tensor of a tensor that spans the ranks.
    homes, say
        See :class:`ParameterMeans`.
    """

    def __init__(
        self, models: ModelCalls, *, homes: frozenset[int], full_tensor: Callable[[torch.Tensor], torch.Tensor], say: Callable[[str], None]
    ) -> None:
        super().__init__(homes=homes, say=say)
        self._models, self._full_tensor = models, full_tensor
        self._depth = 0  # of nested model calls
        self._before: list[Noted] = []  # gradients before a pass that may fail
        self._was_open = False  # whether an autograd graph was open when the cell called a model

    # -- calls of models ---------------------------------------------------------------------------------------------

    def adopt(self, module: nn.Module) -> None:
        """Make the parameters of `module` local ones, on which ranks step by themselves. Collective."""
        others = why_replicated(module, may_write=None)
        found = [p for p in parameters_in(module) if self._notes.get(p) is None and id(p) not in others and _may_be_local(p)]
        if others:
            self._say(f"`--sync-every` averages the gradients of {len(others)} parameters in every step: {next(iter(others.values()))}.")
        if not found:
            return
        self.check_replicas(found)
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
        """Average parameters that are ahead before an evaluation, or if the cell accesses them between the call and the backward pass."""
        found = [(p, note) for p in parameters_in(module) if (note := self._notes.get(p)) is not None]
        whole = not torch.is_grad_enabled()
        self._was_open = self._models.graph_open
        if whole and self._models.graph_open:
            self._before_each_call([note for _, note in found])
        self.average([parameter for parameter, note in found if whole or note.model.each_call])

    def calling(self, module: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002  # any
        """Return a context for the cell's call of a model."""
        return nullcontext()

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a module: on the rank's share of a batch with the rank's parameters, on anything else with averaged ones."""
        if self._depth:
            return original(module, *args, **kwargs)
        parameters = [parameter for parameter in parameters_in(module) if self._notes.get(parameter) is not None]
        if self._models.parts.current is None:
            if self._was_open:  # next time, average before the graph is made
                self._before_each_call([*filter(None, map(self._notes.get, parameters))])
            self.average(parameters)
        self._depth += 1
        try:
            with plain(parameters):
                return original(module, *args, **kwargs)
        finally:
            self._depth -= 1

    def _before_each_call(self, notes: Sequence[Note]) -> None:
        """Average the parameters of models before each later call, so that averaging does not change tensors of an open graph."""
        if not all(note.model.each_call for note in notes):
            self._say(
                "`--sync-every` averages parameters in every step, as the cell reads them between a model's call and the backward pass"
            )
        for note in notes:
            note.model.each_call = True

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return the function that computes later calls: the model itself."""
        return sharded.own_call

    def on_full_batch(self, module: nn.Module) -> None:
        """Do nothing for an open model, whose code is treated like the cell's."""

    # -- backward passes ---------------------------------------------------------------------------------------------

    def begins(self, one: BackwardPass) -> None:
        """Average gradients before a pass that creates a graph of gradients, which must add to those of all ranks."""
        if one.creates_graph:
            self.reduce_gradients(self.all())

    def not_reduced(self, one: BackwardPass) -> AbstractContextManager[None]:  # noqa: ARG002  # any is gone through
        """Return a context that does nothing: gradients are full."""
        return nullcontext()

    def around(self, one: BackwardPass) -> BackwardPass:
        """Return `one`, as each rank runs its own pass."""
        return one

    def among(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `leaves` whose gradients stay the rank's own, which excludes gradients that something else can see."""
        with plain(leaves):
            return [leaf for leaf in leaves if (note := self._notes.get(leaf)) is not None and _is_unseen(leaf, note)]

    @contextmanager
    def during(self, wanted: Sequence[torch.Tensor], reached: Sequence[torch.Tensor]) -> Iterator[Callable[[], None]]:  # noqa: ARG002
        """Leave the gradients of `wanted` as the pass computes them, until the end of the ``with`` block."""
        with plain(self.all()):  # checkpointed blocks may be recomputed
            self._before = [noted(leaf) for leaf in wanted]
            yield lambda: None
        self._before = []
        for leaf in wanted:
            if (note := self._notes.get(leaf)) is not None:
                note.is_graded = True

    def as_if_failed(self, rank: int) -> None:
        """Keep what the pass of `rank` had come to before it failed as gradients of the rank's own. Collective."""
        before, self._before = self._before, []
        with plain(self.all()):
            come_to = [has_come_to(one) for one in before]
            for (leaf, gradient, _), is_reached in zip(before, Exchange.objects(come_to)[rank], strict=True):
                if not is_reached and gradient is None:
                    leaf.grad = None
                elif (note := self._notes.get(leaf)) is not None:
                    note.is_graded = True

    # -- what the cell looks at --------------------------------------------------------------------------------------

    def look(self, parameters: Iterable[torch.Tensor], *, lends: bool) -> None:
        """Average parameters before the cell accesses them, with all of their models. Collective, if they are ahead."""
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
        """Get, set or delete ``parameter.grad``. Collective if a gradient of the rank's share is read."""
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
        """Return the records of the parameters, none of which is ahead."""
        found = []
        with quiet():
            for p, note in self._notes.items():
                is_handed = p.grad is not None and p.grad is note.handed()
                found.append(
                    (p, note.number, note.model.number, note.model.each_call, note.is_graded, note.has_own_state, note.is_lent, is_handed)
                )
        return found

    def load_state_dict(self, state: Iterable[tuple[Any, ...]]) -> None:
        """Resume from a :meth:`state_dict`."""
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
