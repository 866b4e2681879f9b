"""Classes of the notebook, written by value: with all their own attributes, in their order, with slots, and with their qualified names.

cloudpickle forgets the classes around a class, sorts the attributes, leaves out those with the value of a base class, and adds slots as
ordinary attributes. A class that this process has already keeps there what was deleted from it in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from inspect import isdatadescriptor, isgetsetdescriptor, ismemberdescriptor
from typing import Any

import cloudpickle

from .class_hooks import ClassHooks

ClassState = tuple[dict[str, Any], tuple[str, ...]]
"""Attributes that are set on a class that was made, and all names that it has."""

_PYTHONS_OWN = frozenset({"__dict__", "__weakref__", "__module__", "__doc__", "__slotnames__", "__annotate_func__"})
_MOVABLE = frozenset({"__annotations__", "__abstractmethods__"})
_IMMOVABLE = _PYTHONS_OWN | {name for name, value in vars(type).items() if isdatadescriptor(value) and name not in _MOVABLE}


def reduced_class(obj: Any) -> Any:
    """Return the reduce value of a class that is pickled by value, else ``NotImplemented``."""
    if not isinstance(obj, type) or issubclass(obj, Enum):  # cloudpickle makes enumerations with another function
        return NotImplemented
    found = cloudpickle.cloudpickle._class_reduce(obj)
    if found is NotImplemented or found[0] is not cloudpickle.cloudpickle._make_skeleton_class:
        return NotImplemented
    make, arguments, (attributes, _), *rest = found
    kind, name, bases, first, *more = arguments
    first = {**first, "__qualname__": obj.__qualname__}  # of which the name would be the last part
    slots: list[str] = []
    # Tuple subclasses cannot have nonempty slots; `NamedTuple` sets empty ones itself.
    if "__slots__" in vars(obj) and not issubclass(obj, tuple):
        # Use the mangled names of private slots: Python mangles them again to the same.
        members = {key: value for key, value in vars(obj).items() if ismemberdescriptor(value)}
        slots = [key for key, value in members.items() if (value.__objclass__, value.__name__) == (obj, key)]
        made_with = [key for key in ("__dict__", "__weakref__") if isgetsetdescriptor(vars(obj).get(key))]
        first = {**first, "__slots__": (*slots, *made_with)}
    arguments = kind, name, bases, first, *more
    attributes = {**_as_in_a_base(obj), **attributes}
    state = class_state(obj, {key: value for key, value in attributes.items() if key not in slots})
    if (hooks := ClassHooks.of(obj)) is not None:
        make, arguments = hooks.left_out(arguments)
    return make, arguments, state, *rest[:-1], set_class_state


def _as_in_a_base(obj: type) -> dict[str, Any]:
    """Return the attributes that have the same value in a base class, which cloudpickle takes for inherited ones."""
    return {
        "".join(name): value  # as in cloudpickle: equal streams need names that are not interned
        for name, value in vars(obj).items()
        if name not in _PYTHONS_OWN and any(vars(base).get(name, obj) is value for base in obj.__bases__)
    }


def class_state(obj: type, attributes: dict[str, Any]) -> ClassState:
    """Return the state of a class with these of its attributes."""
    names = tuple(vars(obj))
    ordered = {name: attributes.pop(name) for name in map("".join, names) if name in attributes}
    return {**ordered, **attributes}, names


def set_class_state(kind: type, state: ClassState) -> None:
    """Set the attributes of a class that was made, or that this process had; delete others."""
    attributes, names = state
    cloudpickle.cloudpickle._class_setstate(kind, (attributes, {}))
    for name in vars(kind).keys() - _IMMOVABLE - _MOVABLE:
        if name not in names:
            type.__delattr__(kind, name)
    _bring_in_order(kind, names)


def _bring_in_order(kind: type, names: Sequence[str]) -> None:
    wanted = [name for name in names if name in vars(kind) and name not in _IMMOVABLE]
    if wanted == [name for name in vars(kind) if name not in _IMMOVABLE]:
        return
    for name in wanted:
        value = vars(kind)[name]
        type.__delattr__(kind, name)
        type.__setattr__(kind, name, value)
