"""Sharded parameters that are saved for the backward pass by activation checkpointing, or by saved-tensor hooks of the cell.

PyTorch saves the arguments of :func:`torch.utils.checkpoint.checkpoint` as autograd does, and passes plain tensors in the backward pass.
For a parameter that is not gathered such a tensor would have no values, and a compiled function would be compiled again, for another type.
So the parameter itself is saved. In the recomputation it is what it was in the forward pass: full, or computed with by parts.

Saved-tensor hooks of the cell (:class:`torch.autograd.graph.saved_tensors_hooks`) may keep the very parameter that they are given, and
return it when it is no longer gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import _CheckpointFrame

from ....system.patches import patched
from .parameter_store import ParameterStore
from .saved import changed_in_place
from .sharded_rows import quiet


class _Kept:
    """A parameter, and its version when it was saved."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter, self.version = parameter, parameter._version

    def unpack(self) -> nn.Parameter:
        """Return the parameter, or raise if it was written to since."""
        if self.parameter._version != self.version:
            raise changed_in_place(f"a parameter of shape {tuple(self.parameter.shape)}", now=self.parameter._version, then=self.version)
        return self.parameter


@contextmanager
def kept_as_they_are(store: ParameterStore) -> Iterator[None]:
    """Let activation checkpoints save the parameters of `store` themselves, in the ``with`` block."""
    save, get = _CheckpointFrame.save_inputs, _CheckpointFrame.get_inputs

    def save_inputs(frame: Any, *args: Any) -> None:
        with quiet():
            as_now = store.as_now(args)
            kept = [_Kept(arg) if store.shard_of(arg) is not None else arg for arg in args]
        save(frame, *kept)  # type: ignore[no-untyped-call]
        frame.recompute_fn = _run_in(as_now, frame.recompute_fn)

    def get_inputs(frame: Any) -> list[Any]:
        with quiet():
            return [arg.unpack() if isinstance(arg, _Kept) else arg for arg in get(frame)]  # type: ignore[no-untyped-call]

    with ExitStack() as stack:
        stack.enter_context(patched(_CheckpointFrame, "save_inputs", save_inputs))
        stack.enter_context(patched(_CheckpointFrame, "get_inputs", get_inputs))
        stack.enter_context(patched(saved_tensors_hooks, "__enter__", _whole_at_last(store, saved_tensors_hooks.__enter__)))
        yield


def _whole_at_last(store: ParameterStore, enter: Callable[[saved_tensors_hooks], None]) -> Callable[[saved_tensors_hooks], None]:
    """Wrap `enter`, which activates saved-tensor hooks, so that a parameter of `store` that the cell's hooks unpack is full."""

    @wraps(enter)
    def entered(hooks: saved_tensors_hooks) -> None:
        def unpack(kept: Any) -> torch.Tensor:
            result = hooks.unpack_hook(kept)
            shard = store.shard_of(result)
            return result if shard is None else store.saved.full(shard)

        enter(hooks if store.saved.is_own(hooks) else saved_tensors_hooks(hooks.pack_hook, unpack))

    return entered


def _run_in(around: Callable[[], AbstractContextManager[None]], recompute: Callable[..., None]) -> Callable[..., None]:
    """Wrap `recompute` to run within the context manager that `around` returns."""

    @wraps(recompute)
    def run(*args: Any) -> None:
        with around():
            recompute(*args)

    return run
