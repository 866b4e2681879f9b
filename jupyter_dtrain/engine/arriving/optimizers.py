"""Optimizers and schedulers that arrived from the notebook, made whole again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from types import FrameType, MethodType
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def connect_schedulers(objects: Iterable[object]) -> None:
    """Let schedulers know the steps of their optimizers again.

    A scheduler replaces its optimizer's ``step`` by a wrapper that notes the call, and warns when the
    wrapper is gone. The wrapper is a bound method of one process; this makes the same in this one.
    """
    for obj in objects:
        if isinstance(obj, LRScheduler):
            _track_steps(obj.optimizer)


def _track_steps(optimizer: Any) -> None:
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    step = type(optimizer).step

    @wraps(step)
    def tracked(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True
        return type(self).step(self, *args, **kwargs)  # which may be another one while a cell runs

    tracked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = MethodType(tracked, optimizer)


def is_stepping(frame: FrameType | None) -> bool:
    """Return whether an optimizer is in the middle of a step where a thread is at `frame`: weights and what belongs to them may not fit."""
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), Optimizer):
            return True
        frame = frame.f_back
    return False
