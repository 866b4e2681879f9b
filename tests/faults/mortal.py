"""A process that kills itself at a step of its training or in a call, and one that only counts: ``tests`` is on the path of engines.

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
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

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


class Aim(NamedTuple):
    """A call in which a process is killed.

    Attributes
    ----------
    at : str
        What is called: ``module:function``, or ``module:Class.method``.
    within : str
        What it is called within, if it is no matter where else it is called.
    ends : bool
        Whether it is killed as the call is over, and not as it begins.
    """

    at: str
    within: str = ""
    ends: bool = False


def die_at(aim: Aim, sign: str, text: str) -> None:
    """Let this process be killed there, as soon as the file `sign` says `text`."""
    live()
    depth = 0

    def die() -> None:
        if not aim.within or depth:
            die_if_told(sign, text)

    def at(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not aim.ends:
                die()
            result = function(*args, **kwargs)
            if aim.ends:
                die()
            return result

        return called

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                depth -= 1

        return called

    for path, wrapped in ((aim.at, at), (aim.within, within)):
        if path:
            _replace(path, wrapped)


def die_if_told(sign: str, text: str) -> None:
    """Have this process be killed if the file `sign` says `text`."""
    if Path(sign).is_file() and Path(sign).read_text() == text:
        os.kill(os.getpid(), signal.SIGKILL)


def _replace(path: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    module, _, names = path.partition(":")
    *outer, name = names.split(".")
    owner: Any = import_module(module)
    for one in outer:
        owner = getattr(owner, one)
    original = vars(owner)[name]
    setattr(owner, name, wrapped(original))
    _undo.append(lambda: setattr(owner, name, original))
