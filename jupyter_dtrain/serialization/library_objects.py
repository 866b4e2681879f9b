"""Objects in which a library keeps its settings: ``lib.settings.gain = 0.5``, where `settings` is an instance of a class in Python.

Such an object is written as the place where the reader's library has its own, with what it holds, so that whoever refers to it there
finds this too (:mod:`.library_placing` reads it). Only what another process can have is written: numbers, texts, containers of such, what
is found by a name, what is the notebook's, small tensors, and objects like itself in it. The rest is the reader's own.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..analysis.reached_names import reached_names
from ..integrations.registry import keeps_its_objects, reduced_by_library
from .library_state import EVERYBODYS, LibraryState, Place, is_apart, is_of_the_process, is_the_notebooks, modules_of, stays_here
from .library_text import first_values
from .python_reducers import SlotValues, slots_of

Path = tuple[tuple[str, Any], ...]  # from a place on: attributes, and keys or indices of items
LIBRARYS = "library's"  # how a reference begins that is written for such an object
CONTAINERS = (dict, list, set, deque, OrderedDict, defaultdict)
BASES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
_EXACTLY_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.Size, torch.device})
_OF_PLAIN_KINDS = (Enum, PurePath, date, time, timedelta, Decimal, Fraction, np.generic, np.dtype)
OF_EACH_PROCESS: tuple[type, ...] = (logging.Logger, type(threading.Lock()), type(threading.RLock()))
"""What is made anew for another process, and is as good there."""
_FEW = 50  # objects of a library, which are all looked at
_MANY = 200  # items of a container: more are a table or a cache
_MOST = 2000  # values in all that is at one place
_LARGEST = 1 << 20  # bytes of a tensor or an array
_STANDS_FOR_A_FUNCTION = frozenset({"__wrapped__", "__name__", "__code__", "__defaults__"})  # attributes
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_OTHER_THINGS = (type, ModuleType, BaseException, nn.Module, torch.Tensor, tuple, str, bytes, int, float, frozenset, Enum)
_HOMES_OF_BASES = frozenset(
    {"abc", "typing", "typing_extensions", "collections", "collections.abc", "_collections_abc", "types", "argparse"}
)


class Held(NamedTuple):
    """What an object holds, as it is written.

    Attributes
    ----------
    attributes : dict of str to object
    items : list
        Pairs of keys and values of a dict, the items of another container.
    others : dict of str to str
        Attributes that the reader has itself, and of which kind they are; an empty text where that means nothing.
    beside : bool
        The reader keeps the items that it has beside these.
    """

    attributes: dict[str, Any]
    items: list[Any]
    others: dict[str, str]
    beside: bool = False


class LibraryObjects:
    """The objects of libraries that are written as the places where they are.

    Parameters
    ----------
    owned : iterable of object
        The notebook's own, which go along wherever they are.
    words : callable
        Returns what the texts of the notebook mention. Of a library with many objects only those are written that it leads to.

    Attributes
    ----------
    references : dict of int to tuple
        What is written for an object, by its id; ``None`` for what is made to be written.
    objects : list of object
    states : list of LibraryState
        One for each place, to let it have its object.
    lines : list of str
        About objects that cannot be sent.
    """

    def __init__(self, owned: Iterable[object] = (), words: Callable[[], Iterable[str]] = tuple) -> None:
        self.references: dict[int, tuple[str, Any] | None] = {}
        self.objects: list[object] = []
        self.states: list[LibraryState] = []
        self.lines: list[str] = []
        self._words = words
        self._owned = {id(obj) for obj in owned}
        self._packages: set[str] = set()
        self._made: list[Held] = []  # whose ids are in use
        self._left = 0

    def add(self, packages: Iterable[str]) -> set[int]:
        """Find the objects of `packages`; return the ids of those that are new here."""
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
                if is_kept and reduced_by_library(obj) is NotImplemented and _lets_look(obj):
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
        """Leave to the reader the attributes that cannot be sent; return whether there are any."""
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
        """Take `obj` up that is at `path` from `place`; return whether it can be."""
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
            if held.beside:  # of a large table, what the notebook has put there
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
    """Return what there is to say of an object that cannot be sent."""
    name = ".".join(part for part in state.place if part)
    return f"`{name}` is on the engines as its library makes it: what the notebook has put there cannot be sent. Set it inside the cell."


def is_plain(kind: type) -> bool:
    """Return whether objects of `kind` are values that do not change."""
    return kind in _EXACTLY_PLAIN or issubclass(kind, _OF_PLAIN_KINDS)


def is_sent_as_it_is(value: Any) -> bool:
    """Return whether `value` is found by a name, is the notebook's, is a small tensor or array, or a free lock."""
    kind = type(value)
    if issubclass(kind, type | FunctionType | BuiltinFunctionType):
        module = getattr(value, "__module__", None)
        found: Any = sys.modules.get(module) if isinstance(module, str) else None
        for part in str(getattr(value, "__qualname__", "")).split("."):
            found = getattr(found, part, None)
        return found is value or module == "__main__"
    if kind is ModuleType:
        return sys.modules.get(value.__name__) is value
    if kind in (torch.Tensor, nn.Parameter):
        return value.layout is torch.strided and value.is_leaf and value.nbytes <= _LARGEST
    if kind is np.ndarray:
        return not value.dtype.hasobject and value.nbytes <= _LARGEST
    if issubclass(kind, OF_EACH_PROCESS):
        return True
    return str(kind.__module__) == "__main__"


def is_sent_home(name: str, value: Any) -> bool:
    """Return whether `value` goes home that a cell has given attribute `name` of a library's object: if not, it is the library's own."""
    kind = type(value)
    is_known = (
        is_plain(kind) or issubclass(kind, tuple | frozenset) or kind in CONTAINERS or keeps_settings(kind) or is_sent_as_it_is(value)
    )
    return not is_of_the_process(name, value) and (is_known or not name.startswith("_"))


def _holds_settings(container: Any) -> bool:
    items = container.values() if isinstance(container, dict) else container
    return len(items) <= _MANY and any(keeps_settings(type(item)) for item in items)


def _kept_in(module: ModuleType) -> Iterator[tuple[Place, Any, bool]]:
    """Yield what `module` and its classes keep that may be settings, and whether it is a container that the text of `module` begins."""
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
    """Yield the names in `module` that settings may have, each with the class that it is in: a look at all takes long for a library."""
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
                    yield name, part, True  # what is plain in a class is looked for in its text


def _lets_look(obj: Any) -> bool:
    """Return whether `obj` says what it is; a proxy for something that is not there may raise instead."""
    try:
        return obj.__class__ is not None
    except Exception:
        return False


def keeps_settings(kind: type) -> bool:
    """Return whether `kind` is a class in Python, a library's, whose objects hold attributes or items."""
    if kind in _NAMESPACES:
        return True
    if not kind.__flags__ & 1 << 9:  # not made by a `class` statement or the like
        return False
    known = _kinds.get(id(kind))
    if known is None or known[0]() is not kind:
        known = _kinds[id(kind)] = weakref.ref(kind), _is_of_settings(kind)
    return known[1]


_kinds: dict[int, tuple[weakref.ref[type], bool]] = {}


def _is_of_settings(kind: type) -> bool:
    home = str(kind.__module__).partition(".")[0]
    if home in EVERYBODYS or home in sys.stdlib_module_names or issubclass(kind, _OTHER_THINGS) or hasattr(kind, "__get__"):
        return False
    return all(_is_in_python(base) for base in kind.__mro__)


def _is_in_python(kind: type) -> bool:
    home = str(kind.__module__)
    if kind is object or kind in CONTAINERS or home in _HOMES_OF_BASES:
        return True
    return home.partition(".")[0] not in sys.stdlib_module_names and str(getattr(sys.modules.get(home), "__file__", "")).endswith(".py")


def attributes_in(obj: Any) -> dict[str, Any]:
    """Return what `obj` holds in its dict and its slots, past its own ways to look attributes up."""
    own: Any = None
    with suppress(AttributeError):
        own = object.__getattribute__(obj, "__dict__")
    found = dict(own) if type(own) is dict else {}
    return {**found, **SlotValues(obj)} if slots_of(type(obj)) else found


def name_of(kind: type) -> str:
    """Return the name of a class with that of its module."""
    return f"{kind.__module__}.{kind.__qualname__}"
