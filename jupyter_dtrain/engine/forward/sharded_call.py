"""One call of a model on the rank's share of the batch.

Results with one row per sample are placed. A model that turns out to be open is called again as such (see `model_call`). What the first
call teaches is in `first_call`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from ..found_late import DrawsOtherwise, KeepsState
from ..rng.global_rng import ModelSampling
from ..rng.global_sampling import GlobalSampling
from ..rng.streams import ModelStream
from ..tensor.agreed import FailedOnShard, note, on_all_parts
from ..tensor.batch_norm import GlobalNormalization
from ..tensor.caught import may_be_caught
from ..tensor.model_io import NeedsFullBatch, place_results
from ..tensor.placement_types import Shard
from ..tensor.view import GlobalView
from .arguments import CallArguments
from .known_models import ModuleInfo
from .learning_calls import LearningCalls
from .light_module_state import LightModuleState, drawn_with
from .module_state import ModuleState, statistics_of
from .reached import Reached
from .state import CannotRestore
from .watch import Watch
from .watched_graphs import Learned


@dataclass(kw_only=True, eq=False)
class ShardedCall:
    """A call of a model on the rank's share of the batch.

    Attributes
    ----------
    module : nn.Module
    given, own : tuple
        The arguments and keyword arguments from the cell, and the rank's share of these.
    placement : Shard
        The samples in this share.
    called : ModuleInfo
        What is known of the module.
    layers : list of module
        Its normalization layers.
    own_call : callable
        Calls the module with such arguments, on the rank's random stream.
    view : GlobalView
    stream : ModelStream, optional
    draws : ModelSampling, optional
    normalization : GlobalNormalization, optional
        As in `ModelCalls`.
    settings : tuple
        As in `Ways`.
    computed_by : callable, optional
        As in `ShardedParameters`: returns the replacement of `own_call` for a later call; ``None``: `own_call` is used.
    keeps : bool
        Whether a module has stored a tensor.
    exchanges_in : int, optional
        Ident of the thread in which all ranks run the model, each on its share.
    only_learns : bool
        Whether a first call is undone and repeated although it has succeeded.
    refused : bool
        Whether the model itself cannot compute on a share; otherwise only its results lack a row per sample.
    """

    module: nn.Module
    given: Any
    own: Any
    placement: Shard
    called: ModuleInfo
    layers: list[_NormBase]
    own_call: Callable[[Any], Any]
    view: GlobalView
    stream: ModelStream | None
    draws: ModelSampling | None
    normalization: GlobalNormalization | None
    settings: tuple[Any, ...] = ()
    computed_by: Callable[[ShardedCall], Callable[[Any], Any]] | None = None
    keeps: bool = False
    refused: bool = False
    exchanges_in: int | None = None
    only_learns: bool = False
    is_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        given, uncounted = (*self.given[0], *self.given[1].values()), self.called.writes_uncounted
        self._handed = CallArguments(*self.own, given=given, is_first=self.is_first, uncounted=uncounted)
        self._batch_dims: dict[int, tuple[torch.Tensor, int]] = {}
        self._made: dict[int, nn.Module] = {}
        self._reached: Reached | None = None
        self._before: ModuleState | LightModuleState
        if self.is_first:
            return
        if self.called.drawn_with is None:
            self.called.drawn_with = drawn_with(self.module)
        if self.called.watch is None:
            own = (getattr(layer, name) for layer in self.layers for name in statistics_of(layer, per_rank=self.normalization is None))
            self.called.watch = Watch(self.module, map(id, own), self.called.accepted)
        self.called.watch.start()
        self._before = LightModuleState(self.stream, self.layers, self.called.drawn_with)

    def _as_it_is(self) -> ModuleState:
        """Return the model's current state, from which a call can be repeated."""
        return ModuleState(self.module, self.stream, reached=self._reached, leave_out=self._handed.ids, per_rank=self.normalization is None)

    def result(self) -> Any:
        """Return the model's result, placed.

        Raises
        ------
        NeedsFullBatch
            The model is open. All state is as before the call.
        KeepsState
            The model is open, but the call cannot be undone or other ranks may not have noticed.
        FailedOnShard
            A rank's share raised an error that the cell would catch. All state is as before the call.
        """
        handed = self._handed
        self.view.functions.enter(self.placement, is_first=self.is_first)
        if self.normalization is not None:
            self.normalization.share = self.placement.share
        try:
            if not self.is_first and may_be_caught():
                result, drawing = on_all_parts(self._compute, NeedsFullBatch)
            else:
                result, drawing = self._compute()
            if isinstance(self.module, nn.RNNBase):
                self.note_batch_dims(self.module, result)
            if self.keeps or handed.kept() is None or self.view.functions.met.refused:
                raise NeedsFullBatch
            result = handed.with_kept(result)
            batch_dims = {key: dim for key, (_, dim) in self._batch_dims.items()}
            known, one_more, on_new = self.called.results, self._call_with_one_more, self._new_results
            placed = place_results(result, self.placement, known=known, batch_dims=batch_dims, one_more=one_more, on_new=on_new)
            if self.is_first and self._mixes_samples(result, drawing):
                raise NeedsFullBatch
            if self.only_learns:
                raise Learned
            self._refresh_written()
            return handed.keep(placed)
        except (NeedsFullBatch, FailedOnShard):
            if not self.is_first and self.called.watch is not None and self.called.watch.changed(anything=True):
                raise KeepsState(self.module) from None
            try:
                handed.restore()
                self._before.restore()
            except CannotRestore:
                raise KeepsState(self.module) from None
            self._refresh_written()
            raise
        except Exception as error:
            note(error)
            raise
        finally:
            handed.unshard()
            self.view.functions.leave()
            if self.normalization is not None:
                self.normalization.share = None

    def _refresh_written(self) -> None:
        if written := self._handed.inputs.written():
            self.view.arguments.written(written)

    def made(self, module: nn.Module) -> None:
        """Record that the call constructs `module`, a temporary layer or a compiler's graph, whose attributes need not be restored."""
        self._made[id(module)] = module

    def set_attribute(self, module: nn.Module, name: str, value: Any) -> None:
        """Record that attribute `name` of `module` is about to be set to `value`."""
        if isinstance(self._before, LightModuleState) and id(module) not in self._made:
            self._before.setting(module)
        if isinstance(value, torch.Tensor | list | tuple | dict):
            leaves = pytree.tree_leaves(value)
            if any(leaf is value or not isinstance(leaf, nn.Parameter) for leaf in leaves if isinstance(leaf, torch.Tensor)):
                self.keeps |= getattr(module, name, None) is not value

    def note_batch_dims(self, module: nn.RNNBase, result: Any) -> None:
        """Record the batch dims in the results of a recurrent layer."""
        output, hidden = result
        if not isinstance(output, torch.Tensor) or output.dim() != 3:  # packed, or one sequence
            return
        self._batch_dims[id(output)] = output, 0 if module.batch_first else 1
        self._batch_dims.update((id(state), (state, 1)) for state in (hidden if isinstance(hidden, tuple) else (hidden,)))

    def _new_results(self) -> None:
        """Record that results have a new structure: either all ranks see it, or it depends on their samples.

        Raises
        ------
        KeepsState
            An equal call has returned another structure before, so other ranks may not see this one.
        """
        leaves, tree = pytree.tree_flatten(self.given)
        values = tuple(leaf.dim() if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves)
        asked = (self.placement, self.module.training, torch.is_grad_enabled(), str(tree), values)
        if not self.is_first and asked in self.called.asked:
            raise KeepsState(self.module)
        self.called.asked.add(asked)

    def _call_on_own(self, call: Callable[[Any], Any]) -> tuple[Any, GlobalSampling | None]:
        try:
            self._handed.restore()
        except CannotRestore:
            raise KeepsState(self.module) from None
        self._handed.shard(partial(self.view.arguments.shard_argument, placement=self.placement))
        with nullcontext() if self.draws is None else self.draws.drawing(self.module, self.placement) as drawing:
            self.exchanges_in = threading.get_ident() if call is self.own_call else None
            result = call(self.own)
            self.exchanges_in = None
        self._handed.inputs.count()
        return result, drawing

    def _compute(self) -> tuple[Any, GlobalSampling | None]:
        """Return the model's result and what it has drawn.

        Raises
        ------
        KeepsState, DrawsOtherwise
            The call changed state that the first call did not change, or drew where that did not.
        """
        assert self.called.watch is not None and isinstance(self._before, LightModuleState)
        result, drawing = self._call_on_own(self.own_call if self.computed_by is None else self.computed_by(self))
        if self.called.watch.changed() or self._before.has_set(self.called.accepted):
            raise KeepsState(self.module)
        if drawing is not None and drawing.is_other:
            raise DrawsOtherwise(self.module)
        return result, drawing

    def _mixes_samples(self, result: Any, drawing: GlobalSampling | None) -> bool:  # noqa: ARG002
        """Return whether a first call mixes samples; false for later calls, whose model was checked in its first."""
        return False

    def _learning(self) -> LearningCalls:
        known = {name: getattr(self, name) for name in ("module", "given", "placement", "view", "own_call")}
        return LearningCalls(**known, handed=self._handed, before=self._before, state_now=self._as_it_is)

    def _call_with_one_more(self, mode: AbstractContextManager[Any] | None = None) -> Any:
        return self._learning().with_one_more(mode)
