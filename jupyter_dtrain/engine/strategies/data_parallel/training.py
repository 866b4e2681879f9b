"""Data parallel training on one rank: connects the parts that handle models, loaders, gradients and steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from .... import api
from ...backward.gradient_exchange import GradientExchange
from ...backward.gradient_sync import GradientSync
from ...backward.sharded_gradients import ShardedGradients
from ...control import Control
from ...current_run import current_run
from ...data.batch_layout import placed
from ...data.dataloader import ShardedLoaders
from ...data.iterable import Streams
from ...data.iterator_state import IteratorLog
from ...data.worker_rng import workers_ended
from ...forward.activation_checkpoint import CheckpointedBlocks
from ...forward.input_sharding import InputSharding
from ...forward.model_call import ModelCalls
from ...forward.seams import ShardedParameters
from ...module_tree import outermost
from ...patching import instrumented
from ...rng.global_rng import ModelSampling
from ...rng.seeding import CommonEntropy
from ...rng.streams import LoadingStream, ModelStream
from ...side_effects.cell_files import written_once
from ...side_effects.common_clock import CommonClock
from ...side_effects.file_journal import FileLog
from ...side_effects.made_folders import CellStart
from ...side_effects.temp_dirs import TemporaryFolders
from ...task import Semantics
from ...telemetry.notices import Notices
from ...telemetry.observer import Observer
from ...tensor.batch_norm import GlobalNormalization
from ...tensor.batch_shard import BatchSharding
from ...tensor.caught import Catches
from ...tensor.placement_types import Shard, from_local
from ...tensor.rank0_guard import Alone
from ...tensor.redistribute import Exchange
from ...tensor.thread_guard import Turns
from ...tensor.view import GlobalView
from ...timing import Timing
from ...verify.checks import new_checks
from .cell_api import CellApi
from .cell_steps import CellSteps
from .hints import Hints
from .training_state import TrainingState


class DataParallelTraining(CellSteps, TrainingState):
    """Handles batches, calls of models and backward passes of the cell on one rank.

    Parameters
    ----------
    rank, world_size : int
    objects : iterable of object
        The objects that came from the notebook. Models among them are known from the start, others from their first call.
    semantics : Semantics
    count_targets : bool
        Whether targets are counted in every batch from the start, as a loss ignores some of them.
    whole : tuple of str
        Names of classes that are not given a shard of a batch, because a check has found other results on one.
    full_batch : iterable of str
        Names of classes of models that keep state of their samples, and of data sets that draw, which the first calls do not show.
    control : Control
    observer : Observer
    timing : Timing
    notes : Notices
    cursor_log : IteratorLog, optional
        Records iterations over loaders.
    run_id : str
        Equal on all ranks, and different in each run.
    sources : mapping of str to str, optional
        Source of other cells, by the name of their file.
    file_log : FileLog, optional
        Of rank 0.
    temporary : TemporaryFolders, optional
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        objects: Iterable[object],
        semantics: Semantics,
        count_targets: bool = False,
        whole: tuple[str, ...] = (),
        full_batch: Iterable[str] = (),
        control: Control,
        observer: Observer,
        timing: Timing,
        notes: Notices,
        cursor_log: IteratorLog | None = None,
        run_id: str = "",
        sources: Mapping[str, str] | None = None,
        file_log: FileLog | None = None,
        temporary: TemporaryFolders | None = None,
    ) -> None:
        super().__init__(world_size, semantics, control=control, observer=observer, timing=timing, hints=Hints(notes, semantics))
        self.rank = rank
        self._file_log, self._temporary = file_log, temporary or TemporaryFolders()
        self.shares = BatchSharding(rank=rank, world_size=world_size)
        shared, has_view = world_size > 1, world_size > 1 and semantics.global_numbers
        view = partial(GlobalView, rank=rank, world_size=world_size, count_targets=count_targets, on_whole=self._hints.no_rule)
        self._view = view() if has_view else None
        self._gradients = (
            GradientSync(
                world_size=world_size,
                weight_of=self._weight_of,
                on_computed=self._on_computed,
                is_alike=self._is_alike,
                whole=self._view.full_tensor if self._view is not None else None,
                say=notes.say,
            )
            if shared
            else None
        )
        self._model_stream = ModelStream(rank) if shared else None
        self._loading_stream = LoadingStream(rank) if shared else None
        self._draws = (
            ModelSampling(self._model_stream, on_apart=self._hints.draws_apart, on_unknown=self._hints.draws_unknown)
            if semantics.global_draws and self._view is not None and self._model_stream is not None
            else None
        )
        self._entropy = CommonEntropy(run_id)
        self._alone, self._catches = Alone(sources or {}), Catches(sources or {})
        self._api = CellApi(rank=rank, world_size=world_size, alone=self._alone, observer=observer)
        self._normalization = GlobalNormalization() if semantics.global_batchnorm and self._view is not None else None
        self._models = ModelCalls(
            on_first_call=self._gradients.register if self._gradients is not None else lambda _: None,
            stream=self._model_stream,
            view=self._view,
            draws=self._draws,
            normalization=self._normalization,
            inputs=InputSharding(self.shares.local_shard, self._on_input_shared) if semantics.split_inputs and shared else None,
            blocks=CheckpointedBlocks() if semantics.checkpoint_activations else None,
            on_sequence=self._hints.takes_batch_for_sequence,
            full_batch=full_batch,
        )
        self._models.checks, fetch_checks = new_checks(
            semantics.verify,
            view=self._view,
            passes=self._models.passes,
            world_size=world_size,
            statistics_per_rank=self._normalization is None,
            draws_per_rank=self._draws is None,
            whole=whole,
            say=self._hints.say,
            step=lambda: observer.step,
        )
        objects = list(objects)
        if any(isinstance(obj, torch.optim.Optimizer) for obj in objects):
            observer.on_optimizer()
        for module in outermost(objects):
            self._models.register(module)
        self.objects = objects
        observer.hyperparameters.modules = self._models.known.all
        self._loaders = ShardedLoaders(
            share=self.shares.local_shard,
            training=self._models.known.training,
            # What draws or counts over the batch, as models in training mode do, is to see all of it.
            split_evaluation=lambda: semantics.split_evaluation and shared and not self._models.known.any_training(),
            together=world_size if semantics.per_rank_batches else 1,
            place=placed if self._view is not None else lambda batch, _share, _layout: batch,
            agree=Exchange.objects if shared else None,
            on_batch=self._on_batch,
            on_other=self._on_other_batch,
            on_unknown=self._on_unknown,
            say=notes.say,
            on_order=self._draws.agree if self._draws is not None else lambda: None,
            streams=Streams(rank=rank, shares=self.shares.of) if shared else None,
            stream=self._loading_stream,
            whole_draws=not shared or (semantics.global_draws and semantics.global_numbers),
            on_training=observer.hyperparameters.on_loader,
            on_drawn=observer.hyperparameters.on_batch,
            cursors=cursor_log,
            checks=fetch_checks,
            sees_whole=self._view is not None,
            full_batch=full_batch,
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the cell in the ``with`` block; reducers are destroyed at its end."""
        api.current = self._api
        self._timing.start()
        try:
            with (
                current_run.having(loaders=self._loaders),
                workers_ended(),
                self._view.installed() if self._view is not None else nullcontext(),
                self._draws.installed() if self._draws is not None else nullcontext(),
                self._normalization.installed() if self._normalization is not None else nullcontext(),
                self._entropy.installed() if self._view is not None else nullcontext(),
                CommonClock().installed() if self._view is not None else nullcontext(),
                self._files(),
                self._alone.installed(),
                self._catches.installed() if self._world_size > 1 else nullcontext(),
                Turns().installed(),
                self._observer.installed(self.objects),
                instrumented(
                    models=self._models,
                    loaders=self._loaders,
                    gradients=self._gradients,
                    timing=self._timing,
                    on_backward=lambda root: self._on_backward(self._observer.unscaled(root)),
                    on_backward_failed=self._observer.on_backward_failed,
                    on_optimizer=self._observer.on_optimizer,
                    on_optimizer_step=self._observer.on_optimizer_step,
                ),
            ):
                yield
        finally:
            api.current = None
            self._timing.stop()
            self._observer.finish()
            if self._gradients is not None:
                self._gradients.close()

    def _files(self) -> AbstractContextManager[None]:
        """Return the context manager in which only rank 0 writes the cell's files. Collective: no rank writes before all are here."""
        start = CellStart.agreed(self.rank, Exchange.objects) if self._world_size > 1 else None
        return written_once(self.rank, start, log=self._file_log, temporary=self._temporary, alike=self._view is not None)

    def shard_parameters(self, parameters: ShardedParameters, gradients: ShardedGradients) -> None:
        """Shard the parameters of models and their gradients. Collective."""
        assert self._gradients is not None
        self._gradients.sharded = gradients
        parameters.check_replicas = self._gradients.replicas.check
        self._models.shard(parameters)

    def exchange_by(self, exchange: GradientExchange) -> None:
        """Average full gradients by `exchange` from now on."""
        if self._gradients is not None:
            self._gradients.exchange_by(exchange)

    def share_out(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `tensors` sharded along dim 0 over the ranks, as if a loader had yielded them as one batch."""
        if self._view is None:
            return dict(tensors)
        self._shared_out |= bool(tensors)
        shares = [self.shares.local_shard(tensor.shape[0]) for tensor in tensors.values()]
        parts = zip(tensors.items(), shares, strict=True)
        return {name: from_local(tensor[share.loaded], Shard(0, share)) for (name, tensor), share in parts}
