"""What ranks tell each other while a transform of torch.func is under way (``grad``, ``vmap``): that is no part of what is transformed.

New memory would be one of the transform's wrappers, and memory that is older must not be written into.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def in_transform() -> bool:
    """Return whether a transform of torch.func is under way."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """Leave the transforms that are under way, until the end of the ``with`` block."""
    return temporarily_clear_interpreter_stack() if in_transform() else nullcontext()
