"""Modules beside the notebook under their names, as the notebook has them, and its own classes.

What a cell needs of such a module is sent by value: its classes are made anew here, and no module of this process knows them. But
pickle looks for a class by the name of its module (``torch.save(model, …)``, and its ``torch.load``), and a cell may import again what
the notebook has imported. So for the time of a run these names mean what was sent. A module that nobody asks for is not imported for it.
``__main__`` is the cell: what it defines itself is found there too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

from ...capture.patches import original


@contextmanager
def found_by_name(objects: Iterable[object], namespace: dict[str, Any]) -> Iterator[None]:
    """Let modules, classes and functions among `objects`, which came with the cell, and what is in its `namespace` be found by name."""
    objects = list(objects)
    modules = {obj.__name__: obj for obj in objects if isinstance(obj, ModuleType)}
    parts: dict[str, dict[str, Any]] = {}
    for obj in objects:
        if isinstance(obj, FunctionType | type) and obj.__module__ not in (None, *modules) and obj.__qualname__.isidentifier():
            parts.setdefault(obj.__module__, {})[obj.__qualname__] = obj
    replaced = _Replaced()
    replaced.set(sys.modules, {"__main__": _main(namespace, parts.pop("__main__", {}))})
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


def _main(namespace: dict[str, Any], others: dict[str, Any]) -> ModuleType:
    """Return a module whose names are those of `namespace`; of `others`, which the cell does not name, one can ask."""

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
    """Entries of dicts that others have taken the places of."""

    def __init__(self) -> None:
        self._entries: list[tuple[dict[str, Any], str, object, list[Any]]] = []

    def set(self, names: dict[str, Any], values: dict[str, Any]) -> None:
        """Let `values` take the places of the entries of `names` that are called so."""
        for name, value in values.items():
            self._entries.append((names, name, value, [names[name]] if name in names else []))
        names.update(values)

    def restore(self) -> None:
        """Put back what was there, where nobody has put something else."""
        for names, name, value, before in reversed(self._entries):
            if names.get(name) is value:
                names.update({name: before[0]} if before else {})
                if not before:
                    del names[name]


class _Finder:
    """Finds modules of which parts were sent, and puts these in once the module was imported."""

    def __init__(self, parts: dict[str, dict[str, Any]], replaced: _Replaced) -> None:
        self._parts, self._replaced = parts, replaced

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how the module is imported; ``None``: as any other."""
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
