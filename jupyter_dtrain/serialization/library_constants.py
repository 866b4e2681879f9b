"""Objects that a library has one of and compares with ``is``: ``dataclasses.MISSING``, ``torch.distributions.constraints.real``.

Such an object is written as its module and name, and the reader takes its own. A copy would be an ordinary value to the library's code:
a data class would have `MISSING` as its default. Only objects whose attributes are immutable are written so. The attributes go along, as
some can be set (``calendar.c.firstweekday``).
"""

from __future__ import annotations

import copyreg
import importlib
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, EllipsisType, FunctionType, ModuleType, NotImplementedType
from typing import Any

import cloudpickle

from ..analysis.imports import brought
from .container_reducers import set_attributes
from .library_changes import is_of_the_process
from .library_kinds import attributes_in, is_plain
from .library_objects import Held
from .library_placing import fill_in_cell, holds
from .python_reducers import bare, is_of_python, slots_of

_DEEPEST = 5  # attributes of attributes that are looked at
_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)


@dataclass(frozen=True)
class _Globals:
    """The instances of one class among the globals of its module and of the packages above: id → module and name."""

    kind: weakref.ref[type]
    namespaces: list[dict[str, Any]]
    size: int
    found: dict[int, tuple[str, str]]


_known: dict[int, _Globals] = {}
_bare_objects: tuple[int, dict[int, tuple[str, str]]] = 0, {}


def reduced_constant(obj: Any) -> Any:
    """Return the reduce value of a library's constant, else ``NotImplemented``."""
    place = _place_of(obj)
    if place is None:
        return NotImplemented
    kind = type(obj)
    if issubclass(kind, tuple):
        return _constant, (*place, None, ())
    if not _is_immutable(obj, _DEEPEST):
        return NotImplemented
    return _constant, (*place, kind, tuple(attributes_in(obj).items()))


def _place_of(obj: Any) -> tuple[str, str] | None:
    kind = type(obj)
    if kind is object:
        return _place_of_bare_object(obj)
    if kind.__module__ in ("builtins", "__main__"):
        return None
    place = _globals_of(kind).get(id(obj))
    if place is None or vars(sys.modules[place[0]]).get(place[1]) is not obj:
        return None
    return place


def _globals_of(kind: Any) -> dict[int, tuple[str, str]]:
    known = _known.get(id(kind))
    if known is None or known.kind() is not kind or known.size != sum(map(len, known.namespaces)):
        modules = [*_modules_above(kind.__module__)] if _has_constants(kind) else []
        names = [(module.__name__, name, value) for module in modules for name, value in list(vars(module).items())]
        found = {id(value): (module, name) for module, name, value in reversed(names) if type(value) is kind}
        namespaces = [vars(module) for module in modules]
        known = _known[id(kind)] = _Globals(weakref.ref(kind), namespaces, sum(map(len, namespaces)), found)
    return known.found


def _modules_above(name: str) -> Iterator[ModuleType]:
    """Yield the module `name` and the packages it is in."""
    while name:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType) and module.__name__ == name:
            yield module
        name = name.rpartition(".")[0]


def _has_constants(kind: Any) -> bool:
    """Return whether objects of `kind` may be written by name: the class is a library's and has no way of its own to be pickled."""
    if not isinstance(kind.__module__, str) or kind in copyreg.dispatch_table:
        return False
    if _is_one_of_a_kind(kind):
        return True
    own = (kind.__reduce_ex__, kind.__reduce__, kind.__getstate__) == (object.__reduce_ex__, object.__reduce__, object.__getstate__)
    return own and is_of_python(kind) and cloudpickle.cloudpickle._should_pickle_by_reference(kind)


def _is_one_of_a_kind(kind: Any) -> bool:
    """Return whether `kind` is the class of a tuple that describes this process, and is not found by its name: that of `sys.flags`."""
    return issubclass(kind, tuple) and kind.__module__ == "sys" and getattr(sys, kind.__name__, kind) is not kind


def _place_of_bare_object(obj: object) -> tuple[str, str] | None:
    """Return the place of a library's ``object()``. All modules are looked through, once for each number of modules."""
    global _bare_objects
    if _bare_objects[0] != len(sys.modules):
        modules = sys.modules.copy()
        by_name = cloudpickle.cloudpickle._should_pickle_by_reference
        librarys = [module for name, module in modules.items() if type(module) is ModuleType and module.__name__ == name != "__main__"]
        found = {
            id(value): (module.__name__, name)
            for module in reversed(librarys)  # one that has it from another was imported later
            for name, value in list(vars(module).items())
            if type(value) is object and by_name(module)
        }
        _bare_objects = len(modules), found
    place = _bare_objects[1].get(id(obj))
    return place if place is not None and vars(sys.modules[place[0]]).get(place[1]) is obj else None


def _is_immutable(value: Any, depth: int) -> bool:
    """Return whether `value` is an immutable value, or an object of a library with only such attributes."""
    kind = type(value)
    if depth < 0:
        return False
    if is_plain(kind) or kind in (EllipsisType, NotImplementedType):
        return True
    if kind in (tuple, frozenset):
        return all(_is_immutable(part, depth - 1) for part in value)
    if issubclass(kind, _CODE):
        return getattr(value, "__module__", None) != "__main__"
    return is_of_python(kind) and all(_is_immutable(held, depth - 1) for held in attributes_in(value).values())


def _constant(module: str, name: str, kind: Any, pairs: tuple[tuple[str, Any], ...]) -> Any:
    """Return this process's object, with the writer's attributes for the time of a cell; `kind` is ``None`` for what describes a process.

    Outside of a cell, where they differ, return a copy of the writer's.
    """
    with brought():
        found = vars(importlib.import_module(module)).get(name)
    if kind is None:
        return found
    attributes = dict(pairs)
    if type(found) is kind:
        kept = {key: value for key, value in attributes_in(found).items() if is_of_the_process(key, value)}
        held = Held({key: value for key, value in attributes.items() if key not in kept}, [], dict.fromkeys(kept, ""))
        if fill_in_cell(found, held) or holds(found, held):
            return found
    made = bare(kind)
    slots = slots_of(kind)
    own = {key: value for key, value in attributes.items() if key not in slots}
    set_attributes(made, (own, {key: value for key, value in attributes.items() if key in slots}))
    return made
