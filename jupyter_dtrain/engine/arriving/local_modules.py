"""Modules beside the notebook that a cell has imported on an engine: read again once their files have changed.

What the notebook has imported travels by value and is as the notebook has it. A cell that says ``import`` itself finds what
the engine imported for an earlier cell, so an engine forgets that when the user has edited it.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

from ...capture.bundle import modules_beside
from ...capture.imports import Stamp, stamp_of


class LocalModules:
    """What an engine has imported from the notebook's folder, and how its files were when it did."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._folder = Path()
        self._began = 0  # when the cell did, in ns since the epoch

    def refresh(self, folder: Path) -> None:
        """Before a cell: forget all modules beside the notebook if one of them was edited, as others may have taken names from it."""
        found = _stamps_of(folder)
        if any(self._stamps.get(name) != stamp for name, stamp in found.items()):
            for name in found:
                del sys.modules[name]
            self._stamps = {}
            importlib.invalidate_caches()
        self._folder, self._began = folder, time.time_ns()

    def note(self) -> None:
        """Behind it: note what it has imported. What was written meanwhile was so perhaps after that."""
        self._stamps = {
            name: self._stamps.get(name, stamp)
            for name, stamp in _stamps_of(self._folder).items()
            if name in self._stamps or stamp[0] < self._began
        }


def _stamps_of(folder: Path) -> dict[str, Stamp]:
    """Return the modules beside the notebook that are imported, each with how its file is now."""
    return {module.__name__: stamp_of(module) for module in modules_beside(folder)}
