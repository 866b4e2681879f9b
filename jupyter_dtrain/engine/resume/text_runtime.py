"""The object that rewritten code finds among Python's builtins: the loops of a run, or a no-op after its end."""

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
    """The interface for rewritten code."""

    is_quiet: bool
    """Whether boundaries are no longer reported."""


_installed: weakref.WeakSet[Runtime] = weakref.WeakSet()


@contextmanager
def found_by_texts(runtime: Runtime) -> Iterator[None]:
    """Let rewritten code find `runtime` in the ``with`` block."""
    before = getattr(builtins, RUNTIME, None)
    put(builtins, RUNTIME, runtime)
    _installed.add(runtime)
    try:
        yield
    finally:
        # Functions that the cell made and somebody keeps still ask for a run.
        put(builtins, RUNTIME, before if before is not None else FinishedLoop())


def _be_quiet() -> None:
    """Report no boundaries in a forked process, such as a worker of a data loader."""
    for runtime in _installed:
        runtime.is_quiet = True


os.register_at_fork(after_in_child=_be_quiet)


class FinishedLoop:
    """The no-op after the end of a run."""

    at = paused = LIVE

    def saved(self, number: int) -> bool:  # noqa: ARG002
        """Return that a loop's iterable is to be evaluated."""
        return False

    def loop(self, number: int, iterable: Any) -> Iterator[Any]:  # noqa: ARG002
        """Return a plain iterator."""
        return iter(iterable)

    def manager(self, number: int, index: int, manager: Any) -> Any:  # noqa: ARG002
        """Return a context manager as it is."""
        return manager

    def start(self, number: int) -> None:
        """Begin a ``while`` loop."""

    def turn(self, number: int) -> bool:  # noqa: ARG002
        """Return that the condition of a ``while`` loop is to be evaluated."""
        return False
