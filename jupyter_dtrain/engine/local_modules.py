"""Modules beside the notebook that a cell has imported on an engine: read again once their files have changed.

What the notebook has imported travels by value and is as the notebook has it. A cell that says ``import`` itself finds what
the engine imported for an earlier cell, so an engine forgets that when the user has edited it.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

from ..capture.bundle import modules_beside

Stamp = tuple[int, int]  # time of the last change in ns, and size in bytes


class LocalModules:
    """What an engine has imported from the notebook's folder, and when it was written."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._last_cell = 0  # when it began, in ns since the epoch

    def refresh(self, folder: Path) -> None:
        """Forget all modules beside the notebook if one of them was edited: others may have taken names from it."""
        modules = modules_beside(folder)
        found = {module.__name__: _stamp(str(module.__file__)) for module in modules}
        if any(self._is_edited(name, stamp) for name, stamp in found.items()):
            for name in found:
                del sys.modules[name]
            found = {}
            importlib.invalidate_caches()
        self._stamps = found
        self._last_cell = time.time_ns()

    def _is_edited(self, name: str, stamp: Stamp) -> bool:
        if name in self._stamps:
            return self._stamps[name] != stamp
        return stamp[0] >= self._last_cell  # the last cell imported it, perhaps before this change


def _stamp(file: str) -> Stamp:
    try:
        found = os.stat(file)  # noqa: PTH116  # a text, as Python has it
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
