"""CUDA graphs that a cell captures: meanwhile no other thread of this project asks the GPU for anything.

As a rule CUDA lets no thread of the process wait for an event or read a value as long as one of them captures, and breaks the capture off.
The thread that sends events does both, so it asks for nothing then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

from ...system.patches import patched
from .emitter import Emitter


@contextmanager
def undisturbed_captures(emitter: Emitter) -> Iterator[None]:
    """Let `emitter` ask no source while a graph is captured, until the end of the ``with`` block."""
    begin, end = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end
    under_way = ExitStack()

    @wraps(begin)
    def capture_begin(*args: Any, **kwargs: Any) -> None:
        under_way.enter_context(emitter.asking_nobody())
        try:
            begin(*args, **kwargs)
        except BaseException:
            under_way.close()
            raise

    @wraps(end)
    def capture_end(*args: Any, **kwargs: Any) -> None:
        with under_way:
            end(*args, **kwargs)

    with (
        under_way,
        patched(torch.cuda.CUDAGraph, "capture_begin", capture_begin),
        patched(torch.cuda.CUDAGraph, "capture_end", capture_end),
    ):
        yield
