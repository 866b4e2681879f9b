"""Activation checkpointing of a model's repeated blocks (``--checkpoint-activations``).

Most memory of a training step is held by activations saved for the backward pass. For the blocks of a transformer or a residual network,
PyTorch can save only the inputs and recompute the rest in the backward pass (:func:`torch.utils.checkpoint.checkpoint`). This takes about a
third more time; the saved memory grows with the number of blocks. The recomputation of a block draws the same numbers from every random
stream, and its writes to buffers (BatchNorm counts each batch) are undone, so results equal those of the unchanged model.
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
from ..identity_map import IdentityMap
from ..module_tree import Found, has_hooks
from ..rng.generators import generators_in
from ..rng.streams import OtherStreams
from .module_state import ModuleState


class CheckpointedBlocks:
    """Calls the blocks of models in training with activation checkpointing."""

    def __init__(self) -> None:
        self._blocks = Found(blocks_in)
        self._here: frozenset[int] = frozenset()
        self._known: IdentityMap[_Block] = IdentityMap()

    @contextmanager
    def within(self, model: nn.Module) -> Iterator[None]:
        """Make the blocks of `model` known to :meth:`call` until the end of the ``with`` block, which encloses a call of `model`."""
        before, self._here = self._here, frozenset(map(id, self._blocks.of(model)))
        try:
            yield
        finally:
            self._here = before

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the module's own call, checkpointed if `module` is a block in training with gradients on."""
        if id(module) not in self._here or not module.training or not torch.is_grad_enabled() or has_hooks(module) or _is_checkpointed():
            return original(module, *args, **kwargs)
        block = self._known.get(module)
        if block is None:
            return self._first_call(original, module, args, kwargs)
        if block.remembers:
            return original(module, *args, **kwargs)
        return _checkpointed(original, module, args, kwargs, _AsItWas(module, OtherStreams.of(block.generators)))

    def _first_call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original` for the first time, and learn whether the block keeps state between calls.

        This call is checkpointed already: without that, the first step would need the memory that checkpointing is to save.
        """
        before = ModuleState(module, None)
        generators = generators_in(module)
        recompute = _AsItWas(module, OtherStreams.of(generators))
        result = _checkpointed(original, module, args, kwargs, recompute)
        remembers = before.written() or bool(before.changes()) or before.has_set()
        if remembers:
            # The result depends on state from earlier calls: restore it to recompute this call. Later calls are not checkpointed.
            recompute.before = before
        self._known.set(module, _Block(remembers, generators))
        return result


class _Block(NamedTuple):
    remembers: bool
    generators: list[Any]


def _is_checkpointed() -> bool:
    """Return whether the user's code already checkpoints the current call, which then needs no second checkpoint."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) == checkpoint.__module__


def _checkpointed(
    original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recompute: AbstractContextManager[None]
) -> Any:
    return checkpoint(
        partial(original, module), *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), recompute), **kwargs
    )


class _AsItWas(AbstractContextManager[None]):
    """The context of a block's recomputation: replays the draws of the call, then undoes all draws and buffer writes.

    Parameters
    ----------
    module : nn.Module
    streams : OtherStreams
        Random streams as they were before the call.

    Attributes
    ----------
    before : ModuleState, optional
        The block before the call; set only for a block that keeps state.
    """

    def __init__(self, module: nn.Module, streams: OtherStreams) -> None:
        self._module, self._streams = module, streams
        self.before: ModuleState | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        now = self._streams.recapture()
        # `.data` hides the writes from autograd, which may have saved these buffers.
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
