"""Keyboard interrupts while engines work for the notebook: counted, not raised."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any


class Interrupts:
    """Counts keyboard interrupts, which are no exceptions while it is entered.

    One that came at the wrong moment would leave engines running with nobody to wait for them.

    Parameters
    ----------
    wake : callable
        Called at each.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.count = 0
        self._wake = wake
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # no other gets them
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, _number: int, _frame: object) -> None:
        self.count += 1
        self._wake()
