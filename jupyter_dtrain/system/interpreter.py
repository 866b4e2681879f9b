"""Control Python's interpreter: keyboard interrupts, garbage collection, recursion limit and warnings."""

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
    """Count keyboard interrupts in the ``with`` block instead of raising them.

    An exception at the wrong moment would leave engines running with nobody waiting for them. Python delivers interrupts to the main
    thread; objects that other threads have entered count them as well.

    Parameters
    ----------
    wake : callable
        Called at each interrupt.
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
    """Turn a keyboard interrupt in the ``with`` block into an error that says it came `what`, such as "while the engines were starting"."""
    try:
        yield
    except CellInterrupted:
        raise
    except KeyboardInterrupt:
        raise CellInterrupted([f"KeyboardInterrupt: Interrupted {what}. The cell has not begun: run it again."]) from None


# Garbage collection


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection: otherwise millions of new objects are traversed again and again, though none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Recursion limit for pickles: Python's default stops them long before the stack of the main thread (8 MiB) is full.

_DEEP = 10_000  # nested calls, which are 3,300 nested objects and 2 MiB of stack


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let calls of the main thread nest ten times as deep as usual, as for a linked list, each object of which contains the next."""
    if threading.current_thread() is not threading.main_thread():  # other threads have a stack of 512 KiB on macOS
        yield
        return
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


# Warnings about what this project does, not the user, are suppressed.


@contextmanager
def unwarned() -> Iterator[None]:
    """Suppress warnings until the end of the ``with`` block.

    ``warnings.catch_warnings`` would make Python forget which warnings it has shown, and show the user's own again.
    """
    filters = cast("list[Any]", warnings.filters)
    ignored = ("ignore", None, Warning, None, 0)
    filters.insert(0, ignored)
    try:
        yield
    finally:
        with suppress(ValueError):  # someone else has removed the filter
            filters.remove(ignored)


_by_call = 0


def num_references(obj: object) -> int:
    """Return how many references exist to an object that the caller has in a local variable, that one included.

    ``sys.getrefcount`` counts its argument too, but not since Python 3.14.
    """
    return sys.getrefcount(obj) - _by_call


def _of_a_new_object() -> int:
    one = object()
    return num_references(one)


_by_call = _of_a_new_object() - 1
