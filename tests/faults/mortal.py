"""A process that kills itself at a step of its training, and one that only counts them: ``tests`` is on the path of kernels and engines.

A step is an optimizer's, or a call of ``backward()`` where a cell updates its weights by hand. A kill from outside comes at a moment of
the clock's; this one comes at the same step each time. Whoever takes the dead one's place was not told, and lives.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

LIMIT = 5.0  # seconds that a checkpoint is waited for: a cell without a place to go on from takes none

OPTIMIZER, BACKWARD = "optimizer", "backward"
counted: Counter[str] = Counter()
_undo: list[Callable[[], object]] = []


def count(on_step: Callable[[str], None] = lambda _kind: None) -> None:
    """Count the steps of this process from here on, and tell `on_step` of each."""
    live()
    backward = torch.autograd.backward

    def note(kind: str) -> None:
        counted[kind] += 1
        on_step(kind)

    @wraps(backward)
    def noted_backward(*args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        note(BACKWARD)

    hook = register_optimizer_step_post_hook(lambda *_: note(OPTIMIZER))
    torch.autograd.backward = noted_backward
    _undo.extend([hook.remove, lambda: setattr(torch.autograd, "backward", backward)])


def live() -> None:
    """Count no more, and do not die."""
    while _undo:
        _undo.pop()()
    counted.clear()


def die(kind: str, step: int, folder: str | None) -> None:
    """Let this process be killed at the `step`-th step of that kind: at once, or when `folder` has a checkpoint of since then."""
    checkpoints = lambda: set(Path(folder).glob("dtrain-runs/*/checkpoints/step-*")) if folder else set()  # noqa: E731
    seen = checkpoints()

    def on_step(this: str) -> None:
        nonlocal seen
        if this != kind or counted[kind] < step - 1:
            return
        if counted[kind] < step:
            seen = checkpoints()
            return
        deadline = time.monotonic() + LIMIT
        while folder and not checkpoints() - seen and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    count(on_step)
