"""What the objects of libraries hold that an engine has imported, and what a cell makes of those that did not come with it.

A cell that imports a library itself, and sets something in it, has set it in the notebook too. So what the objects of a library hold that
the cell's text names is noted when its import is over. What is different when the cell is over goes home, and the engine's hold again what
they held. Libraries that others import, as PyTorch does, are not looked at: that takes long for large ones.
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
    """Return the objects of libraries that did not come with the cell and hold something else than at first: with their places."""
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
    """Note what the objects of `packages` hold now, `but` for some."""
    _packages.update(packages)
    found = _everything(packages)
    for obj in found.objects:
        reference = found.references[id(obj)]
        if reference is not None and id(obj) not in but and id(obj) not in librarys_objects():
            _firsts[id(obj)] = obj, Held(*reference[1][4:])


@contextmanager
def firsts_noted(texts: Iterable[str]) -> Iterator[None]:
    """Note what is imported within the ``with`` block that `texts` name, and let its objects hold at the end what they held at first."""
    noted = _Noted(frozenset(word for text in texts if "import" in text for word in words_of(text)))
    sys.meta_path.insert(0, noted)
    with suppress(Exception):
        new = {word for word in noted.words if word in sys.modules and word not in _packages}
        _note(_packages | new, but=_firsts)  # of a library whose integration is gone, nothing has been noted
    try:
        yield
    finally:
        sys.meta_path.remove(noted)
        with suppress(Exception):
            for key, obj in _changed(_everything(_packages)).items():
                if key in _firsts and _firsts[key][0] is obj:
                    fill(obj, _firsts[key][1])


class _Noted:
    """Finds modules of libraries, and notes what their objects hold once the outermost import is over."""

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words - EVERYBODYS - sys.stdlib_module_names
        self._depth = 0
        self._new: set[str] = set()
        self._before: dict[int, Any] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how the module is imported; ``None``: as any other."""
        package = name.partition(".")[0]
        if package not in self.words:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)  # one may have a hook of its own (mlflow's)
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
