"""Observe optimizers and their steps while a cell runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..system.patches import patched
from .timing import OPTIMIZER, Timing


@contextmanager
def optimizers_watched(
    timing: Timing, on_optimizer: Callable[[], None], on_optimizer_step: Callable[[torch.optim.Optimizer], None]
) -> Iterator[None]:
    """Call back for each optimizer that is constructed, and after each step, until the end of the ``with`` block."""
    make_optimizer = torch.optim.Optimizer.__init__

    @wraps(make_optimizer)
    def optimizer_init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        make_optimizer(self, *args, **kwargs)
        on_optimizer()

    before_step = timing.part

    def optimizer_begins(*_: Any) -> None:
        nonlocal before_step
        before_step = timing.switch(OPTIMIZER)

    def optimizer_stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        timing.switch(before_step)
        on_optimizer_step(optimizer)

    with patched(torch.optim.Optimizer, "__init__", optimizer_init):
        hooks = [register_optimizer_step_pre_hook(optimizer_begins), register_optimizer_step_post_hook(optimizer_stepped)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
