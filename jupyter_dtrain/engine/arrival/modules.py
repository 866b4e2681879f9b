"""Let modules beside the notebook, and classes from it, be found under their names as in the notebook.

What a cell needs of such a module is sent by value: its classes are created anew here, and no module of this process contains them. But
pickle finds a class by the name of its module (``torch.save(model, …)`` and its ``torch.load``), and a cell may import again what the
notebook has imported. Therefore these names refer to the objects sent during a run. Modules are not imported just for that. ``__main__`` is
the cell, and contains what the cell defines.
"""

from __future__ import annotations

import importlib
import io
import os
import random
import secrets
import shutil
import sys
import time
import timeit
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ...analysis.imports import Stamp, modules_beside, stamp_of
from ...capture.library_patches import original
from ...serialization.late_bound import LateBuiltin
from ...serialization.stand_ins import stands_for


@contextmanager
def found_by_name(objects: Iterable[object], namespace: dict[str, Any]) -> Iterator[None]:
    """Let modules, classes and functions among `objects`, which came with the cell, and names in `namespace` be found by name."""
    objects = list(objects)
    modules = {obj.__name__: obj for obj in objects if isinstance(obj, ModuleType)}
    parts: dict[str, dict[str, Any]] = {}
    for obj in objects:
        if isinstance(obj, FunctionType | type) and obj.__module__ not in (None, *modules) and obj.__qualname__.isidentifier():
            parts.setdefault(obj.__module__, {})[obj.__qualname__] = obj
    replaced = _Replaced()
    others = _with_surroundings(objects, parts.pop("__main__", {}))
    replaced.set(sys.modules, {"__main__": _main(namespace, others)})
    finder = _Finder(parts, replaced)
    for name, module in modules.items():
        replaced.set(sys.modules, {name: module})
    for name in parts.keys() & sys.modules.keys():
        names = vars(sys.modules[name])
        replaced.set(names, {key: part for key, part in parts[name].items() if original(names.get(key)) is names.get(key)})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        replaced.restore()


def _with_surroundings(objects: Iterable[object], others: dict[str, Any]) -> dict[str, Any]:
    """Return `others` with a stand-in for each class of the notebook that did not come, around nested ones that did (``Outer.Config``)."""
    found = dict(others)
    for kind in objects:
        if not (isinstance(kind, type) and kind.__module__ == "__main__"):
            continue
        first, *path = kind.__qualname__.split(".")
        if not path or "<locals>" in path or first in others:
            continue
        around: Any = found.setdefault(first, SimpleNamespace())
        for name in path[:-1]:
            around = vars(around).setdefault(name, SimpleNamespace())
            if not isinstance(around, SimpleNamespace):
                break
        else:
            setattr(around, path[-1], kind)
    return found


def _main(namespace: dict[str, Any], others: dict[str, Any]) -> ModuleType:
    """Return a module whose names are those of `namespace`; attribute access also finds those of `others`, which the cell does not name."""

    class Main(ModuleType):
        @property
        def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
            return namespace

        def __getattr__(self, name: str) -> Any:
            for names in (namespace, others):
                if name in names:
                    return names[name]
            raise AttributeError(f"module '__main__' has no attribute {name!r}")

        def __setattr__(self, name: str, value: object) -> None:
            namespace[name] = value

        def __delattr__(self, name: str) -> None:
            namespace.pop(name, None)

    return Main("__main__")


class _Replaced:
    """Replaces entries of dicts, and restores them."""

    def __init__(self) -> None:
        self._entries: list[tuple[dict[str, Any], str, object, list[Any]]] = []

    def set(self, names: dict[str, Any], values: dict[str, Any]) -> None:
        """Replace entries of `names` by those of `values`."""
        for name, value in values.items():
            self._entries.append((names, name, value, [names[name]] if name in names else []))
        names.update(values)

    def restore(self) -> None:
        """Restore the replaced entries, except those that have been changed since."""
        for names, name, value, before in reversed(self._entries):
            if names.get(name) is value:
                names.update({name: before[0]} if before else {})
                if not before:
                    del names[name]


class _Finder:
    """Finds modules of which parts were sent, and inserts these parts after the import."""

    def __init__(self, parts: dict[str, dict[str, Any]], replaced: _Replaced) -> None:
        self._parts, self._replaced = parts, replaced

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec that inserts the parts after the import; ``None`` for other modules."""
        spec = PathFinder.find_spec(name, path, target) if name in self._parts else None
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        execute = loader.exec_module

        def execute_and_replace(module: ModuleType) -> None:
            execute(module)
            self._replaced.set(vars(module), self._parts[name])

        loader.exec_module = execute_and_replace
        return spec


# Modules beside the notebook that a cell has imported on an engine are reloaded after their files have changed.
#
# What the notebook has imported is sent by value, in the notebook's version. A cell that imports a module itself gets what the engine
# imported for an earlier cell, so the engine must drop that after the user has edited the file.


class LocalModules:
    """Modules that an engine has imported from the notebook's folder, with the states of their files at that time."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._folder = Path()
        self._began = 0  # start of the cell, in ns since the epoch

    def refresh(self, folder: Path) -> None:
        """Before a cell, drop all modules beside the notebook if one of them was edited, as others may have imported names from it."""
        found = _stamps_of(folder)
        if any(self._stamps.get(name) != stamp for name, stamp in found.items()):
            for name in found:
                del sys.modules[name]
            self._stamps = {}
            importlib.invalidate_caches()
        self._folder, self._began = folder, time.time_ns()

    def note(self) -> None:
        """After a cell, record what it has imported; a file written since the cell's start may have changed after its import."""
        self._stamps = {
            name: self._stamps.get(name, stamp)
            for name, stamp in _stamps_of(self._folder).items()
            if name in self._stamps or stamp[0] < self._began
        }


def _stamps_of(folder: Path) -> dict[str, Stamp]:
    """Return the imported modules beside the notebook, each with the current state of its file."""
    return {module.__name__: stamp_of(module) for module in modules_beside(folder)}


# Replacements of library functions during a run, where the user holds these functions under other names. # After ``from torch import
# tensor``, the notebook's `tensor` is PyTorch's function itself, even while a run has patched ``torch.tensor``. Therefore names in the
# cell's namespace, and in modules beside the notebook, are replaced too. Modules imported during a run get the patched functions, and the
# original ones after the run.

_HOLDERS = (torch, torch.autograd, F, torch.jit, np.random, random, io, os, os.path, shutil, time, timeit, uuid, secrets)
_BETWEEN_RUNS = [dict(vars(holder)) for holder in _HOLDERS]  # compared to find the few dozen names of thousands that a run patches


def namespaces_of(objects: Iterable[object]) -> list[dict[str, Any]]:
    """Return the namespaces of modules beside the notebook: of those that came with the cell's `objects`, and of those imported here."""
    functions = [obj.__globals__ for obj in objects if isinstance(obj, FunctionType)]
    modules = [vars(obj) for obj in (*objects, *modules_beside(Path.cwd())) if isinstance(obj, ModuleType)]
    return list({id(names): names for names in (*functions, *modules)}.values())


@contextmanager
def known_by_names(namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Let names in `namespaces` that refer to patched functions refer to the patches until the end of the ``with`` block."""
    imported = set(sys.modules)
    found = {id(value): obj for obj in _changed() if (value := stands_for(obj)) is not None}
    for names in namespaces:
        names.update({name: found[key] for name, obj in names.items() if (key := id(_original(obj))) in found})
    try:
        yield
    finally:
        new = [module for name in sys.modules.keys() - imported if isinstance(module := sys.modules.get(name), ModuleType)]
        for names in (*namespaces, *map(vars, new)):
            for name, obj in list(names.items()):
                value = stands_for(obj)
                if value is not None:
                    names[name] = value


def _original(obj: Any) -> object:
    if type(obj) is LateBuiltin:
        return obj.__wrapped__
    function = stands_for(obj)
    return obj if function is None else function


def _changed() -> Iterator[object]:
    """Yield the values of names in `_HOLDERS` that are new or changed compared with the state between runs."""
    for holder, before in zip(_HOLDERS, _BETWEEN_RUNS, strict=True):
        yield from (obj for name, obj in list(vars(holder).items()) if before.get(name) is not obj)
