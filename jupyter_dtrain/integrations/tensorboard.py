"""TensorBoard's writers: what a cell logs is written once, by rank 0, and is in its file when the cell is over.

The other ranks compute what is logged, which may take all of them, and write nothing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..analysis.imports import imported_for
from ..system.patches import patched
from .base import Integration, RunScope

_MODULE = "torch.utils.tensorboard.writer"
_FILES, _NONE = frozenset({"file_writer", "all_writers"}), frozenset[str]()


def is_event_writer(obj: object) -> bool:
    """Return whether `obj` is a ``torch.utils.tensorboard.SummaryWriter``."""
    module = sys.modules.get(_MODULE)
    return module is not None and issubclass(type(obj), module.SummaryWriter)


class TensorBoard(Integration):
    """Writers go along without their files: each process opens one of its own when there is something to write."""

    def process_attributes(self, obj: object) -> frozenset[str]:
        """Return those of a writer that hold its files."""
        return _FILES if is_event_writer(obj) else _NONE

    @contextmanager
    def run_scope(self, run: RunScope) -> Iterator[None]:
        """Let writers write on rank 0 alone, and close them at the end: they open a file again where they are used again."""
        imported_for(run.source, "torch.utils.tensorboard")  # takes a second: only for cells that ask for it
        module: Any = sys.modules.get(_MODULE)
        if module is None:
            yield
            return
        try:
            if run.rank == 0:
                yield
            else:
                with patched(module, "FileWriter", _Silent):
                    yield
        finally:
            for obj in gc.get_objects():
                if is_event_writer(obj):
                    obj.close()


class _Silent:
    """Stands where a writer has its file."""

    def __init__(self, log_dir: str, *_: Any) -> None:
        self._log_dir = str(log_dir)

    def get_logdir(self) -> str:
        return self._log_dir

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Write nothing."""


INTEGRATION = TensorBoard()
