"""What rewritten text finds under its name among Python's builtins: the loops of a run, and in the place of one that is over nothing."""

from __future__ import annotations

import builtins
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ...analysis.ast_nodes import LIVE, RUNTIME
from ...system.patches import put


class Runtime(Protocol):
    """What is asked, as far as others see it."""

    is_quiet: bool
    """Whether nobody is told of boundaries any more."""


_installed: weakref.WeakSet[Runtime] = weakref.WeakSet()


@contextmanager
def found_by_texts(runtime: Runtime) -> Iterator[None]:
    """Let rewritten text find `runtime` within the ``with`` block."""
    before = getattr(builtins, RUNTIME, None)
    put(builtins, RUNTIME, runtime)
    _installed.add(runtime)
    try:
        yield
    finally:
        # Functions that the cell made and somebody keeps still ask for a run.
        put(builtins, RUNTIME, before if before is not None else FinishedLoop())


def _be_quiet() -> None:
    """In a process that was forked from this one (a worker of a data loader) there is no run."""
    for runtime in _installed:
        runtime.is_quiet = True


os.register_at_fork(after_in_child=_be_quiet)


class FinishedLoop:
    """In the place of a run that is over."""

    at = paused = LIVE

    def saved(self, number: int) -> bool:  # noqa: ARG002
        """Say that a loop's iterable is to be evaluated."""
        return False

    def loop(self, number: int, iterable: Any) -> Iterator[Any]:  # noqa: ARG002
        """Return an iterator that tells nobody."""
        return iter(iterable)

    def manager(self, number: int, index: int, manager: Any) -> Any:  # noqa: ARG002
        """Return a context manager as it is."""
        return manager

    def start(self, number: int) -> None:
        """Begin a ``while`` loop."""

    def turn(self, number: int) -> bool:  # noqa: ARG002
        """Leave it to a ``while`` loop's condition."""
        return False
