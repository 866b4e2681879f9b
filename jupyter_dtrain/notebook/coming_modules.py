"""Modules that a cell was the first to import: made in the notebook from what comes home, without executing their files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import spec_from_file_location
from types import ModuleType

from ..analysis.imports import note_brought
from ..capture.library_patches import Patch


class ComingModules:
    """Makes the modules of one cell. Until :meth:`complete`, they may be empty."""

    def __init__(self) -> None:
        self._made: dict[str, ModuleType] = {}

    def named(self, name: str) -> ModuleType:
        """Return the module of this name, a new one if the notebook has none."""
        if name not in sys.modules:
            self._made[name] = sys.modules[name] = ModuleType(name)
        return sys.modules[name]

    def complete(self, read: Iterable[tuple[ModuleType, list[Patch]]]) -> None:
        """Finish the modules that were `read`, with what they have set in libraries. Forget the others."""
        there: list[str] = []
        for module, patches in read:
            there.append(module.__name__)
            if self._made.pop(module.__name__, None) is not None:
                _be_found(module)
            for patch in patches:
                setattr(patch.owner, patch.name, patch.value)
        for name in self._made:
            sys.modules.pop(name, None)
        note_brought(there)


def _be_found(module: ModuleType) -> None:
    """Give a module what the import system gives it."""
    spec = spec_from_file_location(module.__name__, module.__file__, submodule_search_locations=getattr(module, "__path__", None))
    if spec is not None:
        vars(module).update({"__spec__": spec, "__loader__": spec.loader, "__cached__": spec.cached})
    parent, _, name = module.__name__.rpartition(".")
    if (package := sys.modules.get(parent)) is not None:
        setattr(package, name, module)
