"""Let only rank 0 write TensorBoard events, and close the files at the end of a cell.

The other ranks compute what is logged, which may need all ranks, but write nothing.
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
    """Writers are pickled without their files: each process opens its own when there is something to write."""

    def process_attributes(self, obj: object) -> frozenset[str]:
        """Return the attributes of a writer that hold its files."""
        return _FILES if is_event_writer(obj) else _NONE

    @contextmanager
    def run_scope(self, run: RunScope) -> Iterator[None]:
        """Let writers write on rank 0 only, and close them at the end: they reopen a file when they are used again."""
        imported_for(run.source, "torch.utils.tensorboard")  # takes a second, so only for cells that mention it
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
    """Replacement for a file writer that writes nothing."""

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
