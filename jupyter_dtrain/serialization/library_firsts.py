"""Initial contents of library objects that an engine imports, to detect what a cell changes in objects that did not come with it.

If a cell imports a library and sets an option in it, the notebook must get that option too. When the import of a library that the cell's
text names is over, the contents of its objects are recorded. Differences at the cell's end are sent home, and the engine's objects are
reset. Libraries that other libraries import, as PyTorch does, are not recorded: that takes long for large ones.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..analysis.reached_names import words_of
from .library_changes import EVERYBODYS
from .library_objects import Held, LibraryObjects
from .library_placing import fill, holds, librarys_objects
from .library_state import has_come, is_apart

_firsts: dict[int, tuple[Any, Held]] = {}
_packages: set[str] = set()


def changed_objects() -> LibraryObjects:
    """Return the library objects that did not come with the cell and have changed since they were recorded, with their places."""
    found = _everything(_packages)
    changed = {} if is_apart() else _changed(found)
    places = {reference[1][0] for key in changed if (reference := found.references[key]) is not None}
    found.states = [state for state in found.states if state.place in places and not has_come(state.place)]
    found.references = {key: reference for key, reference in found.references.items() if reference is None or not has_come(reference[1][0])}
    return found


def _everything(packages: set[str]) -> LibraryObjects:
    found = LibraryObjects()
    found.add(sorted(packages))
    return found


def _changed(found: LibraryObjects) -> dict[int, Any]:
    came = librarys_objects()
    return {id(obj): obj for obj in found.objects if id(obj) not in came and not _is_as_at_first(obj)}


def _is_as_at_first(obj: Any) -> bool:
    first = _firsts.get(id(obj))
    return first is not None and first[0] is obj and holds(obj, first[1])


def _note(packages: set[str], *, but: Container[int]) -> None:
    """Record the contents of the objects of `packages`, except those with an id in `but`."""
    _packages.update(packages)
    found = _everything(packages)
    for obj in found.objects:
        reference = found.references[id(obj)]
        if reference is not None and id(obj) not in but and id(obj) not in librarys_objects():
            _firsts[id(obj)] = obj, Held(*reference[1][4:])


@contextmanager
def firsts_noted(texts: Iterable[str]) -> Iterator[None]:
    """Record libraries that are imported within the ``with`` block and named in `texts`; reset their objects at its end."""
    noted = _Noted(frozenset(word for text in texts if "import" in text for word in words_of(text)))
    sys.meta_path.insert(0, noted)
    with suppress(Exception):
        new = {word for word in noted.words if word in sys.modules and word not in _packages}
        _note(_packages | new, but=_firsts)  # a library whose integration is gone was not recorded before
    try:
        yield
    finally:
        sys.meta_path.remove(noted)
        with suppress(Exception):
            for key, obj in _changed(_everything(_packages)).items():
                if key in _firsts and _firsts[key][0] is obj:
                    fill(obj, _firsts[key][1])


class _Noted:
    """An import finder that records the contents of libraries' objects once the outermost import is over."""

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words - EVERYBODYS - sys.stdlib_module_names
        self._depth = 0
        self._new: set[str] = set()
        self._before: dict[int, Any] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec whose loader records the package after execution; ``None`` for modules that are not of interest."""
        package = name.partition(".")[0]
        if package not in self.words:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)  # another finder may have a hook of its own (mlflow's)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        loader: Any = None if spec is None else spec.loader
        if isinstance(loader, type) or not hasattr(loader, "__dict__") or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_note(module: ModuleType) -> None:
            with suppress(AttributeError):
                del loader.exec_module
            if not self._depth:
                self._before = _changed(_everything(_packages & {package}))
            self._depth += 1
            self._new.add(package)
            try:
                execute(module)
            finally:
                self._depth -= 1
                if not self._depth:
                    new, self._new = self._new, set()
                    with suppress(Exception):
                        _note(new, but=self._before)

        loader.exec_module = execute_and_note
        return spec
