"""Calls of models on the rank's share of the batch, with the current call, actions of the user's code in it, and state across calls.

This state comprises the statistics of normalization layers and how models draw for their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch import nn

from ..found_late import WritesLate
from ..rng.global_rng import ModelSampling
from ..rng.global_sampling import RngChanged
from ..rng.streams import ModelStream
from ..tensor.batch_norm import GlobalNormalization, NormalizationLayers
from ..tensor.model_io import NeedsFullBatch
from ..tensor.placement_types import GlobalTensor, Shard, source_of
from ..tensor.redistribute import Exchange
from ..tensor.view import GlobalView
from .cross_sample import SEQUENCE_LAYERS
from .first_call import FirstCall
from .input_sharding import MarkedNow
from .known_models import KnownModels, ModuleInfo
from .seams import ShardedParameters
from .sharded_call import ShardedCall
from .watched_graphs import Learned, are_watched, unwatched
from .ways import Settings


class PartCalls:
    """Calls models on the rank's share of the batch.

    Parameters
    ----------
    known : KnownModels
    view : GlobalView, optional
    stream : ModelStream, optional
        As in `ModelCalls`.
    draws : ModelSampling, optional
        Draws for the whole batch inside models on a share; ``None``: each rank draws for itself.
    normalization : GlobalNormalization, optional
        Normalizes over the whole batch inside models on a share; ``None``: each rank normalizes over its share.
    on_sequence : callable
        Called with the class name of a layer that runs along the batch as its sequence.

    Attributes
    ----------
    current : ShardedCall, optional
        The call that is under way.
    layers : NormalizationLayers
    """

    def __init__(
        self,
        known: KnownModels,
        *,
        view: GlobalView | None,
        stream: ModelStream | None,
        draws: ModelSampling | None,
        normalization: GlobalNormalization | None,
        on_sequence: Callable[[str], None],
    ) -> None:
        self._known, self._view, self._on_sequence = known, view, on_sequence
        self._stream, self._draws, self._normalization = stream, draws, normalization
        self.layers = NormalizationLayers(per_rank=normalization is None)
        self._settings = Settings()
        self.current: ShardedCall | None = None
        self._thread = 0  # in which it is

    def call(
        self,
        view: GlobalView,
        own_call: Callable[[Any], Any],
        module: nn.Module,
        called: ModuleInfo,
        given: Any,
        own: Any,
        placement: Shard,
        parameters: ShardedParameters | None,
    ) -> Any:
        """Call a model on the rank's share of the batch; for the parameters see :class:`ShardedCall`.

        Raises
        ------
        NeedsFullBatch
            The model is open from now on, or must be called once more.
        """
        called.largest = max(called.largest, placement.share.total.bit_length())
        settings = (*self._settings.now(), called.changes.count(module), called.largest)
        draws_known = self._draws is None or self._draws.knows(module)
        is_known = called.results and draws_known and called.ways.is_known(module, given, settings)
        called.has_learned = learns = not is_known and not called.has_learned and are_watched()
        self._thread = get_ident()
        part = self.current = (ShardedCall if is_known else FirstCall)(
            module=module,
            given=given,
            own=own,
            placement=placement,
            called=called,
            layers=self.layers.of(module),
            own_call=own_call,
            view=view,
            stream=self._stream,
            draws=self._draws,
            normalization=self._normalization,
            settings=settings,
            computed_by=None if parameters is None else parameters.computed_by,
            only_learns=learns,
        )
        try:
            with unwatched() if learns else nullcontext():
                return part.result()
        except (RngChanged, Learned):
            raise
        except MarkedNow as now:
            called.marked[module.training] = now.indices
            raise
        except NeedsFullBatch:
            called.is_open = True
            if isinstance(module, SEQUENCE_LAYERS) and not part.refused:
                called.takes_batch_for_sequence = True
                self._on_sequence(type(module).__name__)
            raise
        finally:
            self.current = None

    def set_attribute(self, module: nn.Module, name: str, value: Any, *, inside: bool) -> Any:
        """Return the value to store when the user's code sets attribute `name` of `module` to `value`, `inside` a model or in the cell."""
        if self.current is not None:
            self.current.set_attribute(module, name, value)
        elif self._view is not None:
            if not inside:
                self._settings.setting(module, name, value)
            if isinstance(value, GlobalTensor):
                return self._view.kept(module, name, value)
        return value

    def why_not_written(self) -> WritesLate | None:
        """Return what ends the cell if this thread's user code prints or writes now, in a later call of a model; ``None``: it may."""
        part = self.current
        return None if part is None or part.is_first or get_ident() != self._thread else WritesLate(part.module)

    def watch(self, original: Callable[..., Any], tensor: torch.Tensor, *hook: Callable[..., Any]) -> Any:
        """Run `original` (``Tensor.register_hook``, ``Tensor.retain_grad``), by which the user's code observes gradients of `tensor`."""
        if self.current is not None:
            self.current.keeps |= tensor.grad_fn is not None
        elif self._view is not None and hook:
            return self._view.register_hook(original, tensor, *hook)
        elif self._view is not None and not isinstance(tensor, GlobalTensor):
            self._view.retains(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return original(source_of(tensor), *hook)

    def padding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of `original`, by which sequences are padded: to the longest of the global batch.

        In a call that is only made to learn from, the samples are not those of all ranks, and it may fail on one.
        """

        @wraps(original)
        def pad_packed_sequence(data: Any, batch_sizes: Any, batch_first: bool, padding_value: float, length: int) -> Any:
            if self.current is not None and not torch.compiler.is_dynamo_compiling() and self.current.exchanges_in == get_ident():
                length = max(Exchange.objects(length))
            return original(data, batch_sizes, batch_first, padding_value, length)

        return pad_packed_sequence

    def made(self, module: nn.Module) -> None:
        """Record that `module` is being constructed."""
        if self.current is not None:
            self.current.made(module)
        self._known.note_made(module)

    @property
    def statistics_per_rank(self) -> bool:
        """Whether there are several ranks, and BatchNorm computes the statistics of each one's share."""
        return self._normalization is None and self._stream is not None  # a process group may be left from a cell on several ranks

    def new_statistics(self) -> list[torch.Tensor]:
        """Return the per-rank running statistics of normalization layers used since the last call of this method."""
        used = self._known.normalizing()
        if not used:
            return []
        for module in used:
            self._known.of(module).normalizes = False
        return self.layers.statistics_in(used)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run: models whose statistics may have changed, and what models draw."""
        return {"normalizing": self._known.normalizing(), "draws": None if self._draws is None else self._draws.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that :meth:`state_dict` returned."""
        for module in state["normalizing"]:
            self._known.of(module).normalizes = True
        if self._draws is not None and state["draws"] is not None:
            self._draws.load_state_dict(state["draws"])
