"""Weights that autocast has cast and keeps until its context ends: a step within that context changes what a cell computes with.

One process then computes with the weights from before the step, which is seldom meant. Sharded layers cast their rows anew each time,
and compute with those from after it. The user is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ....system.patches import patched

KEPT = (
    "`--strategy tensor` computes with the weights from after `optimizer.step()`. One process does not: `autocast` keeps what it has cast "
    "until its context ends. End it before the step, or pass it `cache_enabled=False`."
)


class AutocastCache:
    """Notices a model's call that follows a step within one context of autocast.

    Parameters
    ----------
    say : callable
        Tells the user something.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._used = self._stepped = self._told = False

    def note_call(self) -> None:
        """Note that the cell calls a model with sharded layers."""
        if torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled():
            if self._stepped and not self._told:
                self._told = True
                self._say(KEPT)
            self._used = True

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow steps, and ends of autocast's contexts, in the ``with`` block."""
        clear = torch.clear_autocast_cache

        @wraps(clear)
        def cleared() -> None:
            clear()
            self._used = self._stepped = False

        def stepped(*_: object) -> None:
            self._stepped = self._stepped or self._used

        handle = register_optimizer_step_post_hook(stepped)
        try:
            with patched(torch, "clear_autocast_cache", cleared):
                yield
        finally:
            handle.remove()
