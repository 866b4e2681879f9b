"""Keyboard interrupts while engines work for the notebook: counted, not raised."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, cast

from ..errors import CellInterrupted


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


@contextmanager
def interrupted_before_the_cell(what: str) -> Iterator[None]:
    """Say of a keyboard interrupt in the ``with`` block that it came `what` ("while the engines were starting"), and nothing else of it."""
    try:
        yield
    except CellInterrupted:
        raise
    except KeyboardInterrupt:
        raise CellInterrupted([f"KeyboardInterrupt: Interrupted {what}. The cell has not begun: run it again."]) from None


# Python's search for garbage, which costs most where there is none.


@contextmanager
def collection_paused() -> Iterator[None]:
    """Let Python look for no garbage: millions of new objects, none of which is, are looked at again and again otherwise."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# How deep pickles may go: Python stops itself long before the stack of a thread (8 MiB) is full.

_DEEP = 10_000  # calls within calls, which are 3,300 objects that hold one another and 2 MiB of stack


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let calls of the main thread go ten times as deep as usual: a linked list has each of its objects in the one before."""
    if threading.current_thread() is not threading.main_thread():  # others have a stack of 512 KiB on macOS
        yield
        return
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


# Warnings of what this project does and not the user, kept back.


@contextmanager
def unwarned() -> Iterator[None]:
    """Show no warnings until the end of the ``with`` block, and raise none.

    After ``warnings.catch_warnings`` Python does not remember any more what it has shown, and shows the user's own again.
    """
    filters = cast("list[Any]", warnings.filters)
    ignored = ("ignore", None, Warning, None, 0)
    filters.insert(0, ignored)
    try:
        yield
    finally:
        with suppress(ValueError):  # somebody has taken it away
            filters.remove(ignored)
