"""Lists in which a library's class keeps its objects: ``SpikingNeuron.instances`` of snnTorch, by which all neurons are reset at once.

No object refers to such a list, but what the library does for all objects in it is to be done for the notebook's on an engine too, and for
those of a cell in the notebook. So a module says when it is written in which lists it stands, and is put into those of whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
from torch import nn

Place = tuple[Any, str]  # a class, and its attribute

_known: WeakKeyDictionary[type, tuple[Place, ...]] = WeakKeyDictionary()  # a class of a cell leads to all that the cell has made
_before: dict[Place, list[object]] | None = None  # what was in the lists that something was put into, while that is noted


def registered(module: nn.Module, reduced: Any) -> Any:
    """Return how `module` reduces that reduces to `reduced` without its places in such lists."""
    kind: Any = type(module)
    places = [place for place in _lists_of(kind) if any(item is module for item in _list(place))]
    if not places:
        return reduced
    found = module.__reduce_ex__(4) if reduced is NotImplemented else reduced
    function, args, state, _, _, set_state = (*found, *[None] * 6)[:6]
    return function, args, (places, set_state, state), None, None, _enter


@contextmanager
def left_afterwards() -> Iterator[None]:
    """Take out of the lists what comes into them within the ``with`` block: an engine would keep the models of all cells."""
    global _before
    _before = {}
    try:
        yield
    finally:
        before, _before = _before, None
        for (kind, name), items in before.items():
            setattr(kind, name, items)


def _enter(module: nn.Module, state: tuple[list[Place], Any, Any]) -> None:
    places, set_state, own = state
    if set_state is not None:
        set_state(module, own)
    elif hasattr(module, "__setstate__"):
        module.__setstate__(own)
    else:
        vars(module).update(own or {})
    for place in places:
        items = _list(place)
        if _before is not None:
            _before.setdefault(place, items.copy())
        items.append(module)


def _list(place: Place) -> list[object]:
    kind, name = place
    items = vars(kind).get(name)
    return items if type(items) is list else []


def _lists_of(kind: type) -> tuple[Place, ...]:
    """Return the lists that classes of libraries, `kind` and those it is made from, have as attributes of their own."""
    if kind in _known:
        return _known[kind]
    found: list[Place] = []
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        if cloudpickle.cloudpickle._should_pickle_by_reference(base):
            found += [(base, name) for name, value in vars(base).items() if type(value) is list and not name.startswith("__")]
    _known[kind] = tuple(found)
    return _known[kind]
