"""Keyboard interrupts while engines work for the notebook: counted, not raised."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, ClassVar


class Interrupts:
    """Counts keyboard interrupts, which are no exceptions while it is entered.

    One that came at the wrong moment would leave engines running with nobody to wait for them. Python gives them to the main thread;
    those that other threads have entered meanwhile count them as well.

    Parameters
    ----------
    wake : callable
        Called at each.
    """

    _of_other_threads: ClassVar[list[Interrupts]] = []

    def __init__(self, wake: Callable[[], None]) -> None:
        self.count = 0
        self._wake = wake
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._note)
        else:
            self._of_other_threads.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        elif self in self._of_other_threads:
            self._of_other_threads.remove(self)

    def _note(self, _number: int, _frame: object) -> None:
        for one in [self, *self._of_other_threads]:
            one.count += 1
            one._wake()
