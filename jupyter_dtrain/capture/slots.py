"""Classes with ``__slots__``: made with them on the other side too, and what their objects hold there.

cloudpickle makes a class anew without its slots. Its objects then have a dict, take any attribute, and what they hold comes home as that of
a dict, which an object of the notebook's own class has not.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator, MutableMapping, Sequence
from enum import Enum
from inspect import isgetsetdescriptor, ismemberdescriptor
from typing import Any

import cloudpickle


def slots_of(kind: type) -> Sequence[str]:
    """Return the names of all slots that objects of `kind` have."""
    names: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]  # the list that pickle goes by
    # Some of them may be hidden behind what a subclass has under their name (`_raw_path` of a path in Python 3.13).
    return [name for name in names if ismemberdescriptor(getattr(kind, name, None))]


class SlotValues(MutableMapping[str, Any]):
    """What an object holds in its slots, as a dict of attributes: a slot that has no value is not in it."""

    def __init__(self, obj: object) -> None:
        self._obj = obj
        self._names = slots_of(type(obj))

    def __getitem__(self, name: str) -> Any:
        try:
            # Past the object's own ways to look attributes up.
            return object.__getattribute__(self._obj, name) if name in self._names else _no(name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._obj, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._obj, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _no(name: str) -> Any:
    raise AttributeError(name)


def attribute_holders(obj: object) -> list[dict[str, Any] | SlotValues]:
    """Return where `obj` holds its attributes: its dict, its slots, both, or neither."""
    own = getattr(obj, "__dict__", None)
    slots = slots_of(type(obj))
    return [*([own] if isinstance(own, dict) else []), *([SlotValues(obj)] if slots else [])]


def reduced_class(obj: Any) -> Any:
    """Return how a class with slots reduces that is written by value, ``NotImplemented`` for anything else."""
    # Enumerations are made by another function, and tuples have no slots of their own: `NamedTuple` says so itself, and nobody else may.
    if not isinstance(obj, type) or "__slots__" not in vars(obj) or issubclass(obj, Enum | tuple):
        return NotImplemented
    if cloudpickle.cloudpickle._should_pickle_by_reference(obj):
        return NotImplemented
    make, (kind, name, bases, first, *more), (attributes, others), *rest = cloudpickle.cloudpickle._dynamic_class_reduce(obj)
    # By the names that they have in the class, those of private ones with its name in them: Python makes the same of them a second time.
    slots = [key for key, value in vars(obj).items() if ismemberdescriptor(value) and (value.__objclass__, value.__name__) == (obj, key)]
    attributes = {key: value for key, value in attributes.items() if key not in slots}
    made_with = [key for key in ("__dict__", "__weakref__") if isgetsetdescriptor(vars(obj).get(key))]
    first = {**first, "__slots__": (*slots, *made_with)}
    return make, (kind, name, bases, first, *more), (attributes, others), *rest
