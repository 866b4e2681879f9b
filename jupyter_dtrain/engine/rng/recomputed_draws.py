"""Repeat random draws when activation checkpointing recomputes a part of a model in the backward pass.

Checkpointing saves the random state before the part and restores it for the recomputation. That is the state of the rank's stream, but the
part has drawn for the global batch from the cell's stream. The state tensor from ``torch.get_rng_state`` therefore carries a factory of a
mode. When ``torch.set_rng_state`` gets this tensor, it enters the mode, until the state from before is restored.
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
    """A mode that draws for the global batch while it is entered."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...

    def replay(self) -> Callable[[], Mode]:
        """Return a factory of modes that draw from the current state on as this one does."""
        ...


class RecomputedSampling:
    """Lets recomputed parts of a model repeat their draws.

    Parameters
    ----------
    keep : callable
        Returns a factory of modes that draw as the model does from now on, ``None`` if no model draws for the global batch.
    looked : callable
        Called when other code than checkpointing reads or sets random states.
    """

    def __init__(self, keep: Callable[[], Callable[[], Mode] | None], looked: Callable[[], None]) -> None:
        self._keep, self._looked = keep, looked
        self._modes: list[Mode] = []  # entered, outermost first

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace ``torch.get_rng_state`` and ``set_rng_state`` until the end of the ``with`` block."""
        get, put = torch.get_rng_state, torch.set_rng_state

        @wraps(get)
        def get_rng_state() -> torch.Tensor:
            state, caller = get(), _caller()
            if caller == _CHECKPOINT and (again := self._modes[-1].replay() if self._modes else self._keep()) is not None:
                state.__dict__["_again"] = again
            elif caller != _FORK or not self._modes:
                self._looked()
            if caller == _FORK:
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
