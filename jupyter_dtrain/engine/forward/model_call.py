"""Calls of models from the cell.

Calls of modules with parameters are intercepted at the outermost module. There the rank's random stream begins, batches narrow to the
rank's share, and a model that the cell has just made is registered.

Results are placed again, which requires one row per sample. A model is *open* if it returns something else (its own loss, a statistic of
the batch), keeps state of its samples, prints, or observes gradients during the backward pass. The ``forward`` of an open model runs like
the cell's own code, on the global batch, and the modules that it calls are the models. The first call finds this out and is then repeated.
A model with hooks is open as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from ..comm.transforms import outside_transforms
from ..module_tree import OF_ALL_MODULES, has_hooks
from ..rng.global_rng import ModelSampling
from ..rng.streams import ModelStream
from ..tensor.agreed import FailedOnShard
from ..tensor.batch_norm import GlobalNormalization
from ..tensor.compile import compiled
from ..tensor.model_io import NeedsFullBatch
from ..tensor.recompute import BackwardPasses
from ..tensor.thread_guard import in_turn
from ..tensor.view import GlobalView
from .activation_checkpoint import CheckpointedBlocks
from .cross_sample import FEWEST
from .input_sharding import InputSharding, mark
from .known_models import KnownModels, ModuleInfo, stays_lazy
from .part_calls import PartCalls
from .seams import Checks, ShardedParameters


def _of_unit(parameters: ShardedParameters, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return parameters.call(original, module, args, kwargs)


class ModelCalls:
    """Intercepts calls of models while it is installed.

    Parameters
    ----------
    on_first_call : callable
        Called with each module with parameters when the cell first calls it.
    stream : ModelStream, optional
        Random stream inside models; ``None``: the cell's own is used.
    draws, normalization, on_sequence
        As in `PartCalls`.
    view : GlobalView, optional
        Converts global tensors to the rank's own at the call; ``None``: the cell sees the rank's own tensors.
    inputs : InputSharding, optional
        Shards the inputs of models in training where no loader did.
    blocks : CheckpointedBlocks, optional
        Applies activation checkpointing to repeated blocks.
    full_batch : iterable of str
        As in `KnownModels`.

    Attributes
    ----------
    known : KnownModels
        The models of the run.
    parts : PartCalls
    """

    def __init__(
        self,
        *,
        on_first_call: Callable[[nn.Module], None],
        stream: ModelStream | None,
        view: GlobalView | None,
        draws: ModelSampling | None = None,
        normalization: GlobalNormalization | None = None,
        inputs: InputSharding | None = None,
        blocks: CheckpointedBlocks | None = None,
        on_sequence: Callable[[str], None] = lambda _: None,
        full_batch: Iterable[str] = (),
    ) -> None:
        self._on_first_call, self._blocks = on_first_call, blocks
        self._view, self._inputs, self._stream = view, inputs, stream
        self.known = KnownModels(full_batch)
        self.parts = PartCalls(self.known, view=view, stream=stream, draws=draws, normalization=normalization, on_sequence=on_sequence)
        self.passes = BackwardPasses(normalization)
        self.inside, self._caller = False, 0  # whether a model is being called, and the thread's ident
        self._num_opened = 0  # nesting depth of open models' calls
        self.graph_open = False  # a model was called with gradients on since the last backward pass
        self._num_hooks = 0  # hooks registered since the run began
        self.checks: Checks | None = None
        self.parameters: ShardedParameters | None = None

    def register(self, module: nn.Module) -> None:
        """Treat `module` as a model from now on."""
        self.known.of(module).is_model = True
        self._on_first_call(module)
        if self.parameters is not None:
            with outside_transforms():
                self.parameters.adopt(module)

    def shard(self, parameters: ShardedParameters) -> None:
        """Let `parameters` hold the parameters of all models from now on. Collective."""
        self.parameters = parameters
        for module in self.known:
            parameters.adopt(module)

    def full_tensor(self, values: Any) -> Any:
        """Return `values` with the tensors that span the ranks replaced by full tensors. A collective."""
        return values if self._view is None else self._view.arguments.full(values)

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the module's own call; if the cell calls a model, on the rank's share or the full batch."""
        if (self.inside and self._caller == threading.get_ident()) or self.passes.compute_again((args, kwargs)):
            if self.parameters is not None:
                original = partial(_of_unit, self.parameters, original)
            if self._blocks is not None and not self.passes.under_way:
                result = self._blocks.call(original, module, args, kwargs)
            else:
                result = original(module, *args, **kwargs)
            if self.parts.current is not None and isinstance(module, nn.RNNBase):
                self.parts.current.note_batch_dims(module, result)
            return result
        called = self.known.of(module)
        if not self._is_model(called, module):
            return original(module, *args, **kwargs)
        in_turn()
        if self.inside:  # called by a thread that a model's ``forward`` waits for
            return original(module, *args, **kwargs)
        if called.is_lazy:
            called.is_lazy = stays_lazy(module, args, kwargs)
            if called.is_lazy:
                return original(module, *args, **kwargs)
        if self.parameters is not None:
            self.parameters.before_call(module)
        if module.training and not called.normalizes:
            called.normalizes = bool(self.parts.layers.of(module))
        self.graph_open |= torch.is_grad_enabled()
        if self._view is None:
            return self._enclosed(original, module, (args, kwargs), self._stream)
        num_hooks = self._num_hooks + sum(map(len, OF_ALL_MODULES))
        if called.num_hooks != num_hooks:
            called.num_hooks = num_hooks
            called.is_open |= has_hooks(module)
        if self._inputs is not None and not self._num_opened and module.training and torch.is_grad_enabled():
            args, kwargs = self._inputs.placed(args, kwargs)
        if self.checks is None or not self.checks.is_due(module, (args, kwargs)):
            return self._seen(self._view, original, module, called, (args, kwargs))
        seen = partial(self._seen, self._view, original, module, called, (args, kwargs))
        return self.checks.call(seen, partial(self._alone, original, module), module, called, (args, kwargs))

    def _alone(self, original: Callable[..., Any], module: nn.Module, given: Any) -> Any:
        """Run `original` on plain arguments as a single process would."""
        self.inside, self._caller = True, threading.get_ident()
        try:
            return original(module, *given[0], **given[1])
        finally:
            self.inside = False

    def _seen(self, view: GlobalView, original: Callable[..., Any], module: nn.Module, called: ModuleInfo, given: Any) -> Any:
        """Call a model on the rank's share, or on the full batch if it needs that."""
        if called.takes_batch_for_sequence:
            return self._enclosed(original, module, self.full_tensor(given), None)
        if called.is_open:
            return self._opened(original, module, *given)
        if called.marked:
            mark(given, called.marked.get(module.training, ()))
        own, placement = view.arguments.enter(given)
        if placement is None:
            # With replicated inputs all ranks compute the same, so they must draw from the same stream.
            return self._enclosed(original, module, own, None)
        if self.parts.layers.take_statistics(module) and view.arguments.smallest(placement) < FEWEST:
            # Layers that normalize over the batch reject a single sample.
            return self._on_whole(original, module, *given)
        own_call = partial(self._enclosed, original, module, stream=self._stream)
        try:
            return self.parts.call(view, own_call, module, called, given, own, placement, self.parameters)
        except NeedsFullBatch:
            failed = False
        except FailedOnShard:
            failed = True
        # Repeat outside of the `except` clause: its traceback would keep the autograd graph of the failed call alive.
        if failed:
            return self._on_whole(original, module, *given)
        return self._seen(view, original, module, called, given)

    def _on_whole(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a model on the full batch on all ranks; errors are those of a single process."""
        return self._enclosed(original, module, self.full_tensor((args, kwargs)), None)

    def _is_model(self, called: ModuleInfo, module: nn.Module) -> bool:
        if called.is_model is None:
            called.is_model = next(iter(module.parameters()), None) is not None
            if called.is_model:
                self.register(module)
        return called.is_model

    def _opened(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the ``forward`` of an open model as the cell's own code."""
        if self.parameters is not None:
            self.parameters.on_full_batch(module)
        self._num_opened += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            self._num_opened -= 1

    def _enclosed(self, original: Callable[..., Any], module: nn.Module, given: Any, stream: ModelStream | None) -> Any:
        args, kwargs = given
        if self.parameters is not None:
            original = partial(self._fetched, self.parameters, original)
        self.inside, self._caller = True, threading.get_ident()
        if stream is not None:
            stream.switch()
        try:
            with (
                nullcontext() if self._view is None else compiled(),
                nullcontext() if self._blocks is None else self._blocks.within(module),
            ):
                return original(module, *args, **kwargs)
        finally:
            if stream is not None:
                stream.switch()
            self.inside = False

    def _fetched(self, parameters: ShardedParameters, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a model whose parameters are fetched when they are used."""
        with parameters.calling(module):
            return parameters.call(original, module, args, kwargs)

    def grad(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original` (``torch.autograd.grad``): unchanged inside a model, through the view in the cell."""
        if self._view is None or self.inside or self.passes.compute_again((args, kwargs)):
            return original(*args, **kwargs)
        return self._view.grad(original, args, kwargs)

    def in_pass(self) -> AbstractContextManager[None]:
        """Return the context for a backward pass of the cell."""
        return nullcontext() if self._view is None else self._view.in_pass()

    def hooked(self) -> None:
        """Count the registration of a module hook."""
        self._num_hooks += 1
