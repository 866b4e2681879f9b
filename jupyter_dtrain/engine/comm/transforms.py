"""Communicate within a transform of torch.func (``grad``, ``vmap``) without taking part in it.

Within a transform, new tensors would be its wrappers, and existing ones must not be written to.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def in_transform() -> bool:
    """Return whether a transform of torch.func is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """Suspend the active transforms until the end of the ``with`` block."""
    return temporarily_clear_interpreter_stack() if in_transform() else nullcontext()
