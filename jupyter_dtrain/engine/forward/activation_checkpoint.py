"""Repeated blocks of a model, of which nothing is kept for the backward pass but what they were called on (``--checkpoint-activations``).

Most of the memory of a training step is what the layers keep for their gradients. Of a transformer's or a residual network's blocks
PyTorch can keep the inputs alone and compute the rest again in the backward pass (:func:`torch.utils.checkpoint.checkpoint`), a third more
time for a part of the memory that falls with the number of blocks. As it is computed again a block draws as it did, from every stream, and
what it writes meanwhile (BatchNorm counts each batch) is taken back, so that the numbers are those of the model as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...planning.model_cut import blocks_in
from ..module_tree import Found, IdentityMap, has_hooks
from ..rng.generators import generators_in
from ..rng.streams import OtherStreams
from .module_state import ModuleState


class CheckpointedBlocks:
    """Calls the blocks of models in training so that they keep their inputs alone."""

    def __init__(self) -> None:
        self._blocks = Found(blocks_in)
        self._here: frozenset[int] = frozenset()
        self._known: IdentityMap[_Block] = IdentityMap()

    @contextmanager
    def within(self, model: nn.Module) -> Iterator[None]:
        """Let :meth:`call` know the blocks of `model`, whose call is under way, until the end of the ``with`` block."""
        before, self._here = self._here, frozenset(map(id, self._blocks.of(model)))
        try:
            yield
        finally:
            self._here = before

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the module's own call."""
        if id(module) not in self._here or not module.training or not torch.is_grad_enabled() or has_hooks(module) or _is_checkpointed():
            return original(module, *args, **kwargs)
        block = self._known.get(module)
        if block is None:
            return self._first_call(original, module, args, kwargs)
        if block.remembers:
            return original(module, *args, **kwargs)
        return _checkpointed(original, module, args, kwargs, _AsItWas(module, OtherStreams.of(block.generators)))

    def _first_call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original` for the first time, and learn from it whether the block keeps anything of its calls.

        It is checkpointed already: with all activations of the first step, a model would need the memory that checkpointing is to save.
        """
        before = ModuleState(module, None)
        generators = generators_in(module)
        recompute = _AsItWas(module, OtherStreams.of(generators))
        result = _checkpointed(original, module, args, kwargs, recompute)
        remembers = before.written() or bool(before.changes()) or before.has_set()
        if remembers:
            # It goes by what its calls before have left: so this call is computed again from there, and no other.
            recompute.before = before
        self._known.set(module, _Block(remembers, generators))
        return result


class _Block(NamedTuple):
    remembers: bool
    generators: list[Any]


def _is_checkpointed() -> bool:
    """Return whether the user's code checkpoints what is being called: then it is not done once more."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) == checkpoint.__module__


def _checkpointed(
    original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recompute: AbstractContextManager[None]
) -> Any:
    return checkpoint(
        partial(original, module), *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), recompute), **kwargs
    )


class _AsItWas(AbstractContextManager[None]):
    """The recomputation of a block: draws as the call did, and takes back what it draws and writes.

    Parameters
    ----------
    module : nn.Module
    streams : OtherStreams
        As they were before the call.

    Attributes
    ----------
    before : ModuleState, optional
        The block before the call, where it makes a difference.
    """

    def __init__(self, module: nn.Module, streams: OtherStreams) -> None:
        self._module, self._streams = module, streams
        self.before: ModuleState | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        now = self._streams.recapture()
        # Behind the back of autograd, which may have saved them.
        buffers = [(buffer.data, buffer.detach().clone()) for buffer in self._module.buffers()]

        def undo() -> None:
            now.set()
            for data, value in buffers:
                data.copy_(value)

        self._undo.callback(undo)
        if self.before is not None:
            self._undo.callback(ModuleState(self._module, None).restore)
            self.before.restore()
        self._streams.set()

    def __exit__(self, *raised: object) -> None:
        self._undo.close()
