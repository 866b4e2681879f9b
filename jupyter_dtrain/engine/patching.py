"""Patches of PyTorch's entry points while a cell runs.

The cell's code and objects stay unchanged. PyTorch's own entry points are replaced during the run instead, so that models, loaders and
optimizers are covered wherever and whenever they are constructed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules import batchnorm
from torch.utils.data import DataLoader

from ..system.patches import patched
from .backward.gradient_sync import GradientSync
from .data import own_iterators
from .data.dataloader import ShardedLoaders
from .forward.held_back import writes_noticed
from .forward.model_call import ModelCalls
from .module_tree import registrations_counted
from .optimizer_steps import optimizers_watched
from .tensor.compile import scripting
from .tensor.placement_types import GlobalTensor
from .tensor.redistribute import Exchange
from .timing import BACKWARD, DATA, FORWARD, Timing

_HOOKS_OF_MODULES = [f"register_{kind}_hook" for kind in ("forward", "forward_pre", "backward", "full_backward", "full_backward_pre")]


@contextmanager
def hooks_noticed(models: ModelCalls) -> Iterator[None]:
    """Notify `models` when hooks of modules and tensors are registered, until the end of the ``with`` block."""

    def registering(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def register(*args: Any, **kwargs: Any) -> Any:
            models.hooked()
            return original(*args, **kwargs)

        return register

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def watch(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return models.parts.watch(original, self, *args, *kwargs.values())

        return watch

    with ExitStack() as stack:
        for name in _HOOKS_OF_MODULES:
            stack.enter_context(patched(nn.Module, name, registering(getattr(nn.Module, name))))
        for name in ("register_hook", "retain_grad"):
            stack.enter_context(patched(torch.Tensor, name, watching(getattr(torch.Tensor, name))))
        yield


class _Data:
    """The attribute ``Tensor.data``, with which a global tensor is assigned as a full tensor; PyTorch would assign the rank's part."""

    def __init__(self, whole: Callable[[Any], Any]) -> None:
        self._whole = whole
        self._original: Any = torch.Tensor.data

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        return self._original if tensor is None else self._original.__get__(tensor)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        if isinstance(value, GlobalTensor) and not isinstance(tensor, GlobalTensor):
            value = self._whole(value)
        self._original.__set__(tensor, value)


Replacement = tuple[object, str, Any]
"""Target object, attribute name, replacement."""


@contextmanager
def instrumented(
    *,
    models: ModelCalls,
    loaders: ShardedLoaders,
    gradients: GradientSync | None,
    timing: Timing,
    on_backward: Callable[[torch.Tensor], None],
    on_backward_failed: Callable[[], None],
    on_optimizer: Callable[[], None],
    on_optimizer_step: Callable[[torch.optim.Optimizer], None],
) -> Iterator[None]:
    """Patch PyTorch's entry points so that the parts of a run take part in their calls.

    Parameters
    ----------
    models : ModelCalls
    loaders : ShardedLoaders
    gradients : GradientSync, optional
        ``None`` if there is one rank.
    timing : Timing
    on_backward : callable
        Called with the root of every backward pass before it runs.
    on_backward_failed : callable
        Called when a backward pass has raised an error.
    on_optimizer : callable
        Called when an optimizer has been constructed.
    on_optimizer_step : callable
        Called with every optimizer after its step.
    """
    replacements = (
        (torch.Tensor, "data", _Data(models.full_tensor)),
        (dist, "is_initialized", _is_initialized(models)),
        *_of_modules(models, timing),
        *_of_loaders(loaders, timing),
        *_of_backward_passes(models, gradients, timing, on_backward, on_backward_failed),
    )
    with registrations_counted(), hooks_noticed(models), scripting(models.full_tensor), ExitStack() as stack:
        stack.enter_context(writes_noticed(models.parts.why_not_written))
        for target, name, replacement in replacements:
            stack.enter_context(patched(target, name, replacement))
        stack.enter_context(optimizers_watched(timing, on_optimizer, on_optimizer_step))
        yield


def _of_modules(models: ModelCalls, timing: Timing) -> list[Replacement]:
    make, call, set_attribute = nn.Module.__init__, nn.Module.__call__, nn.Module.__setattr__

    @wraps(make)
    def module_init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        models.parts.made(self)

    @wraps(call)
    def module_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # within a model: our bookkeeping must not be compiled or guarded
            return call(self, *args, **kwargs)
        if models.inside:
            return models.call(call, self, args, kwargs)
        before = timing.switch(FORWARD)
        try:
            return models.call(call, self, args, kwargs)
        finally:
            timing.switch(before)

    @wraps(set_attribute)
    def module_setattr(self: nn.Module, name: str, value: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            set_attribute(self, name, value)
            return
        set_attribute(self, name, models.parts.set_attribute(self, name, value, inside=models.inside))

    return [
        (nn.Module, "__init__", module_init),
        (nn.Module, "__call__", module_call),
        (nn.Module, "__setattr__", module_setattr),
        (torch._VF, "_pad_packed_sequence", models.parts.padding(torch._VF._pad_packed_sequence)),
    ]


def _of_loaders(loaders: ShardedLoaders, timing: Timing) -> list[Replacement]:
    count = DataLoader.__len__

    def iterating(iterate: Callable[[Any], Any]) -> Any:
        @wraps(iterate)
        def loader_iter(self: DataLoader[Any]) -> Iterator[Any]:
            timing.num_workers = self.num_workers
            before = timing.switch(DATA)
            try:
                return loaders.iterate(iterate, self)
            finally:
                timing.switch(before)

        return loader_iter

    @wraps(count)
    def loader_len(self: DataLoader[Any]) -> int:
        return loaders.length(count, self)

    kinds = [(DataLoader, DataLoader.__iter__), *own_iterators.followed()]
    return [*((kind, "__iter__", iterating(iterate)) for kind, iterate in kinds), (DataLoader, "__len__", loader_len)]


def _of_backward_passes(
    models: ModelCalls,
    gradients: GradientSync | None,
    timing: Timing,
    on_backward: Callable[[torch.Tensor], None],
    on_backward_failed: Callable[[], None],
) -> list[Replacement]:
    backward, grad = torch.autograd.backward, torch.autograd.grad
    run = backward if gradients is None else partial(gradients.backward, backward)

    @wraps(backward)
    def autograd_backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        given = grad_tensors if grad_tensors is not None else grad_variables
        grads = (given,) if given is None or isinstance(given, torch.Tensor) else tuple(given)
        if len(grads) == 1 and len(roots) > 1:
            grads *= len(roots)
        only = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs.values()) if isinstance(inputs, dict) else inputs
        if models.passes.under_way:  # a nested pass over a recomputed part of the graph
            run(roots, grads, retain_graph=retain_graph, create_graph=create_graph, inputs=only)
            return
        on_backward(roots[0])
        before = timing.switch(BACKWARD)
        try:
            statistics = models.parts.new_statistics() if gradients is not None else []
            end = Exchange.broadcast(statistics) if statistics else None
            # A pass builds graphs internally, even if the cell calls it under `no_grad`.
            with torch.enable_grad(), models.in_pass():
                models.passes.run(run, roots, grads, retain_graph=retain_graph, create_graph=create_graph, inputs=only)
            if end is not None:
                end()
        except BaseException:
            on_backward_failed()
            raise
        finally:
            timing.switch(before)

    @wraps(grad)
    def autograd_grad(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return models.grad(grad, args, kwargs)

    return [(torch.autograd, "backward", autograd_backward), (torch.autograd, "grad", autograd_grad)]


def _is_initialized(models: ModelCalls) -> Callable[[], bool]:
    is_initialized = dist.is_initialized

    @wraps(is_initialized)
    def dist_is_initialized() -> bool:
        # The cell sees a single process, and so do libraries that would otherwise sum up values that are global already. PyTorch's
        # SyncBatchNorm asks too, and gets the real answer if statistics are not computed over the whole batch anyway.
        return models.parts.statistics_per_rank and sys._getframe(1).f_globals.get("__name__") == batchnorm.__name__ and is_initialized()

    return dist_is_initialized
