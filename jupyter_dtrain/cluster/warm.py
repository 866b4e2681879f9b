"""What an engine does before its first cell: the imports that would make the first one slow."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence


def warm_up(modules: Sequence[str]) -> None:
    """Import `modules`, where they exist, and what torch itself puts off until its first optimizer.

    Runs in the engine's main thread as its first task, so a cell that comes early waits for no longer than it must.
    An interrupt waits too: torch cannot be imported again once its import was broken off half-way.
    """
    with _uninterrupted():
        for module in modules:
            # A module that is not there (or does not import) is for the cell that needs it to complain about.
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


def take_place(environment: Mapping[str, str]) -> None:
    """Be the rank whose environment this is. CUDA has not been initialized: an engine that waits has computed nothing."""
    os.environ.update(environment)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
