"""Modules beside the notebook that a cell is the first to import: sent home by value, as they are after the cell.

If the notebook imported them, their files would be executed a second time: print and write again, draw random numbers, and begin
with another state than the one that the cell has left.
"""

from __future__ import annotations

import io
import pickletools
import sys
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..analysis.imports import modules_beside


class NewModules:
    """Made before a cell runs, in the notebook's folder. `at_home` are the modules that the notebook has, ``None`` if that is unknown."""

    def __init__(self, at_home: Collection[str] | None) -> None:
        self._at_home, self._folder, self._before = at_home, Path.cwd(), frozenset(sys.modules)

    def found(self) -> list[ModuleType]:
        """Return the modules that the notebook lacks."""
        if self._at_home is None:
            return []
        return [module for module in modules_beside(self._folder) if module.__name__ not in self._at_home]

    def lost(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Return those of the modules `refused` that the cell has imported, by what of them stays on the engine → the reason."""
        return {f"{name}.__dict__": reason for name, reason in refused.items() if name not in self._before}


class ModulesRefused(Exception):
    """Modules that cannot be packed by value; `reasons` by name."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()
        self.reasons = reasons


def refuse_names(stream: bytes, modules: Collection[ModuleType]) -> None:
    """Raise if a pickled `stream` finds an object by name in one of the `modules`, where its reader has none yet.

    Raises
    ------
    ModulesRefused
    """
    names = {module.__name__ for module in modules}
    memo: dict[Any, object] = {}
    pushed: deque[object] = deque([None, None], maxlen=2)
    file, number = io.BytesIO(stream), 0
    while names and file.tell() < len(stream):
        for operation, argument, _ in pickletools.genops(file):
            if operation.name == "MEMOIZE":
                memo[number], number = pushed[-1], number + 1
            elif operation.name == "STACK_GLOBAL" and pushed[0] in names:
                raise ModulesRefused({str(pushed[0]): f"its {pushed[1]} is pickled by name"})
            else:
                is_get = operation.name in ("BINGET", "LONG_BINGET")
                pushed.append(memo.get(argument) if is_get else argument if isinstance(argument, str) else None)
