"""Hooks of saved tensors around a model's first call.

Activation checkpointing counts the tensors that the graph of a block saves, and compares with those of the recomputation. A first call may
be made twice, on the rank's share and on the full batch. Where such hooks are active, it therefore only learns, without them, and the
call is repeated. That takes a forward pass more, once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ..tensor.model_io import NeedsFullBatch

_OURS = f"{__name__.partition('.')[0]}."


class Learned(NeedsFullBatch):
    """A first call was only made to learn from. The state is as before, and the call is repeated."""


def are_watched() -> bool:
    """Return whether hooks other than ours get the tensors that graphs save."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return torch.is_grad_enabled() and hooks is not None and not str(getattr(hooks[0], "__module__", "")).startswith(_OURS)


def unwatched() -> AbstractContextManager[Any]:
    """Return a context manager within which graphs save tensors as they are."""
    return saved_tensors_hooks(_as_it_is, _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value
