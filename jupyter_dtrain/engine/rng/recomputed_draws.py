"""Draws that are made again in a backward pass: activation checkpointing keeps nothing of a part of a model but the random state before it.

That is the state of the rank's stream, between draws. What the part has drawn for the whole batch came from the cell's stream, so the state
is handed out with what it takes to draw so again, and where it is set, draws are made that way until the state from before is set back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

import torch

from ...system.patches import patched

_CHECKPOINT, _FORK = "torch.utils.checkpoint", "torch.random"


class Mode(Protocol):
    """Draws for the whole batch while it is entered."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...

    def replay(self) -> Callable[[], Mode]:
        """Return what makes a mode that goes on as this one does from now on."""
        ...


class RecomputedSampling:
    """Lets what is computed again draw again.

    Parameters
    ----------
    keep : callable
        Returns what makes a mode in which draws are made as in the model from now on; ``None`` where none draws for the whole batch.
    looked : callable
        Told that something else has looked at random states.
    """

    def __init__(self, keep: Callable[[], Callable[[], Mode] | None], looked: Callable[[], None]) -> None:
        self._keep, self._looked = keep, looked
        self._modes: list[Mode] = []  # under way

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch who takes and sets random states, until the end of the ``with`` block."""
        get, put = torch.get_rng_state, torch.set_rng_state

        @wraps(get)
        def get_rng_state() -> torch.Tensor:
            state, caller = get(), _caller()
            if caller == _CHECKPOINT and (again := self._modes[-1].replay() if self._modes else self._keep()) is not None:
                state.__dict__["_again"] = again
            elif caller != _FORK or not self._modes:
                self._looked()
            state.__dict__["_depth"] = len(self._modes)
            return state

        @wraps(put)
        def set_rng_state(new_state: torch.Tensor) -> None:
            caller = _caller()
            if caller == _CHECKPOINT and (again := new_state.__dict__.get("_again")) is not None:
                put(new_state)
                self._modes.append(again())
                self._modes[-1].__enter__()
                return
            depth = new_state.__dict__.get("_depth", 0)
            if caller == _FORK and len(self._modes) > depth:
                while len(self._modes) > depth:
                    self._modes.pop().__exit__(None, None, None)
            else:
                self._looked()
            put(new_state)

        with patched(torch, "get_rng_state", get_rng_state), patched(torch, "set_rng_state", set_rng_state):
            yield


def _caller() -> Any:
    return sys._getframe(2).f_globals.get("__name__")
