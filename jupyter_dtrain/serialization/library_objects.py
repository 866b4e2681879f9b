"""Objects in which a library keeps settings: ``lib.settings.gain = 0.5``, where `settings` is an instance of a Python class.

Such an object is written as its place in the library, with its contents. The reader fills its own object at this place, so that all
references to that one see the notebook's settings (:mod:`.library_placing`). Only contents that another process can have are written:
numbers, texts, containers of these, importable and notebook objects, small tensors, and settings objects. The reader keeps the rest.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from ..analysis.reached_names import reached_names
from ..integrations.registry import keeps_its_objects, reduced_by_library
from .library_changes import Place, is_of_the_process, is_the_notebooks, modules_of
from .library_kinds import CONTAINERS, attributes_in, is_plain, is_sent_as_it_is, keeps_settings, lets_look, name_of
from .library_state import LibraryState, is_apart, stays_here
from .library_text import first_values

Path = tuple[tuple[str, Any], ...]  # steps from a place: attribute names, and keys or indices of items
LIBRARYS = "library's"  # kind of a reference to such an object
BASES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
_FEW = 50  # with at most so many objects in a library, all are written
_MANY = 200  # items of a container; larger ones are tables or caches
_MOST = 2000  # values below one place
_STANDS_FOR_A_FUNCTION = frozenset({"__wrapped__", "__name__", "__code__", "__defaults__"})  # attributes of function wrappers


class Held(NamedTuple):
    """The contents of an object, as written.

    Attributes
    ----------
    attributes : dict of str to object
    items : list
        Key-value pairs of a dict, or the items of another container.
    others : dict of str to str
        Attributes that the reader keeps → their type's name; an empty text if the type does not matter.
    beside : bool
        The reader adds these items to those that it has.
    """

    attributes: dict[str, Any]
    items: list[Any]
    others: dict[str, str]
    beside: bool = False


class LibraryObjects:
    """The library objects that are written as places.

    Parameters
    ----------
    owned : iterable of object
        The notebook's own objects, which are always sent.
    words : callable
        Returns the names that the notebook's code mentions. Of a library with many objects, only those that these names reach are written.

    Attributes
    ----------
    references : dict of int to tuple
        Id of an object → what is written for it; ``None`` for helper objects that are written themselves.
    objects : list of object
    states : list of LibraryState
        One for each place, to set the object there.
    lines : list of str
        Messages about objects that cannot be sent.
    """

    def __init__(self, owned: Iterable[object] = (), words: Callable[[], Iterable[str]] = tuple) -> None:
        self.references: dict[int, tuple[str, Any] | None] = {}
        self.objects: list[object] = []
        self.states: list[LibraryState] = []
        self.lines: list[str] = []
        self._words = words
        self._owned = {id(obj) for obj in owned}
        self._packages: set[str] = set()
        self._made: list[Held] = []  # keeps their ids in use
        self._left = 0

    def add(self, packages: Iterable[str]) -> set[int]:
        """Collect the objects of `packages`; return the ids of the new ones."""
        new = [package for package in packages if package not in self._packages]
        if not new or is_apart():
            return set()
        before = len(self.objects)
        self._packages.update(new)
        new = [package for package in new if not keeps_its_objects(package)]
        modules = sys.modules.copy()
        for package in new:
            own = list(modules_of(package, modules))
            kept = [(place, obj, is_said) for module in own for place, obj, is_said in _kept_in(module)]
            if len(kept) > _FEW:
                words = self._words()
                for names in (reached_names(package, own, words), words):
                    kept = [one for one in kept if one[0][2] in names or id(one[1]) in self._owned]
                    if len(kept) <= _FEW:
                        break
            for place, obj, is_said in kept:
                is_kept = not is_said or id(obj) in self._owned or _holds_settings(obj)
                if is_kept and reduced_by_library(obj) is NotImplemented and lets_look(obj):
                    self._root(LibraryState(place, obj, "object"))
        return {id(obj) for obj in self.objects[before:]}

    def _root(self, state: LibraryState) -> None:
        self._left = _MOST
        before = len(self.objects)
        if stays := stays_here(state):
            self.lines.append(line_about(state))
        if stays or not self._write(state.held, state.place, ()):
            for obj in self.objects[before:]:
                self.references.pop(id(obj), None)
            del self.objects[before:]
        else:
            self.states.append(state)

    def leave(self, cannot_be_sent: Callable[[Any], bool]) -> bool:
        """Leave attributes that cannot be pickled to the reader; return whether there are any."""
        found = False
        for _, reference in filter(None, self.references.values()):
            held = Held(*reference[4:])
            for name, value in list(held.attributes.items()):
                if not (is_plain(type(value)) or self.references.get(id(value))) and cannot_be_sent(value):
                    held.others[name] = name_of(type(held.attributes.pop(name)))
                    found = True
        return found

    def drop(self, state: LibraryState) -> None:
        """Leave the objects at the place of `state` to the reader."""
        self.lines.append(line_about(state))
        self.states.remove(state)
        gone = {key for key, reference in self.references.items() if reference is not None and reference[1][0] == state.place}
        self.objects = [obj for obj in self.objects if id(obj) not in gone]
        for key in gone:
            del self.references[key]

    def _write(self, obj: Any, place: Place, path: Path) -> bool:
        """Collect `obj`, which is at `path` from `place`; return whether it can be written."""
        if self.references.get(id(obj)) is not None:
            return True
        kind = type(obj)
        attributes = attributes_in(obj)
        if not is_sent_as_it_is(kind) or not _STANDS_FOR_A_FUNCTION.isdisjoint(attributes):
            return False
        base: Any = next((base for base in BASES if issubclass(kind, base)), None)
        is_large = base is not None and base.__len__(obj) > _MANY
        if is_large and not issubclass(base, dict):
            return False
        extra = obj.default_factory if issubclass(kind, defaultdict) else obj.maxlen if issubclass(kind, deque) else None
        if not self._can_be_written(extra, place, (*path, ("attribute", "default_factory"))):
            return False
        held = Held({}, [], {}, is_large)
        self._made.append(held)
        self.references.update({id(part): None for part in (held.attributes, held.items, held.others)})
        self.references[id(obj)] = (LIBRARYS, (place, path, kind, extra, *held))
        self.objects.append(obj)
        for name, value in attributes.items():
            if is_of_the_process(name, value):
                held.others[name] = ""
            elif self._can_be_written(value, place, (*path, ("attribute", name))):
                held.attributes[name] = value
            else:
                held.others[name] = name_of(type(value))
        return base is None or self._write_items(obj, base, held, place, path)

    def _write_items(self, obj: Any, base: Any, held: Held, place: Place, path: Path) -> bool:
        if issubclass(base, dict):
            pairs = list(base.items(obj))
            if held.beside:  # of a large table only the notebook's own entries
                pairs = [pair for pair in pairs if is_the_notebooks(pair[1])]
            held.items.extend(pairs)
            return all(self._can_be_written(part, place, (*path, ("item", key))) for key, value in pairs for part in (key, value))
        held.items.extend(base.__iter__(obj))
        return all(self._can_be_written(part, place, (*path, ("item", index))) for index, part in enumerate(held.items))

    def _can_be_written(self, value: Any, place: Place, path: Path) -> bool:
        self._left -= 1
        kind = type(value)
        if self._left < 0:
            return False
        if is_plain(kind) or id(value) in self._owned:
            return True
        if kind is tuple or kind is frozenset or (issubclass(kind, tuple) and hasattr(kind, "_fields") and is_sent_as_it_is(kind)):
            return all(self._can_be_written(part, place, (*path, ("item", index))) for index, part in enumerate(value))
        if kind is partial:
            return all(self._can_be_written(part, place, (*path, ("", 0))) for part in (value.func, *value.args, *value.keywords.values()))
        if kind in CONTAINERS or keeps_settings(kind):
            return self._part(value, place, path)
        return is_sent_as_it_is(value)

    def _part(self, value: Any, place: Place, path: Path) -> bool:
        before = len(self.objects)
        if self._write(value, place, path):
            return True
        for obj in self.objects[before:]:
            del self.references[id(obj)]
        del self.objects[before:]
        return False


def line_about(state: LibraryState) -> str:
    """Return the message about an object that cannot be sent."""
    name = ".".join(part for part in state.place if part)
    return f"`{name}` is on the engines as its library makes it: what the notebook has put there cannot be sent. Set it inside the cell."


def _holds_settings(container: Any) -> bool:
    items = container.values() if isinstance(container, dict) else container
    return len(items) <= _MANY and any(keeps_settings(type(item)) for item in items)


def _kept_in(module: ModuleType) -> Iterator[tuple[Place, Any, bool]]:
    """Yield the possible settings objects of `module` and its classes, and whether each is a container that the source text initializes."""
    names = vars(module)
    known = _known.get(module.__name__)
    if known is None or known[0] != len(names) or known[1]() is not module:
        known = _known[module.__name__] = len(names), weakref.ref(module), [*_names_in(module)]
    for kind, name, is_said in known[2]:
        owner = names.get(kind) if kind else module
        value = getattr(owner, "__dict__", {}).get(name)
        if type(value) in CONTAINERS or keeps_settings(type(value)):
            yield (module.__name__, kind, name), value, is_said and type(value) in CONTAINERS


_known: dict[str, tuple[int, weakref.ref[ModuleType], list[tuple[str, str, bool]]]] = {}


def _names_in(module: ModuleType) -> Iterator[tuple[str, str, bool]]:
    """Yield class and name of possible settings in `module`; the result is cached, as large libraries take long."""
    said = {(kind, name) for kind, name, first in first_values(module)}
    for name, value in list(vars(module).items()):
        kind = type(value)
        if name.startswith("__"):
            continue
        if kind in CONTAINERS or keeps_settings(kind):
            yield "", name, ("", name) in said
        elif issubclass(kind, type) and vars(value).get("__module__") == module.__name__ and not issubclass(value, Enum):
            for part, held in list(vars(value).items()):
                if (type(held) in CONTAINERS and not part.startswith("__")) or keeps_settings(type(held)):
                    yield name, part, True  # plain values of classes are found in the source text
