"""Streams and events of a GPU, which belong to a process: another one has new ones of its own GPU in their places."""

from __future__ import annotations

from typing import Any

import torch


def reduced_stream(obj: Any) -> Any:
    """Return how a stream or an event of a GPU reduces, ``NotImplemented`` for any other object."""
    kind = type(obj)
    if kind is torch.cuda.Stream:
        return _stream, (obj.cuda_stream == 0, obj.priority)
    if kind is torch.cuda.Event:
        return _event, ()
    return NotImplemented


def _stream(is_default: bool, priority: int) -> torch.cuda.Stream:
    return torch.cuda.default_stream() if is_default else torch.cuda.Stream(priority=priority)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # an event does not tell whether it can
