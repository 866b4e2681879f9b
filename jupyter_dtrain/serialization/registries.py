"""Lists in which a library's class registers its instances, such as ``SpikingNeuron.instances`` of snnTorch.

No object refers to such a list, but functions of the library act on all objects in it (reset all neurons). They must reach the notebook's
objects on an engine, and a cell's objects in the notebook. So a module is pickled with the lists that contain it, and appended to the
reader's lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
from torch import nn

Place = tuple[Any, str]  # a class, and the name of its attribute

_known: WeakKeyDictionary[type, tuple[Place, ...]] = WeakKeyDictionary()  # weak keys: a cell's class refers to all that the cell has made
_before: dict[Place, list[object]] | None = None  # earlier contents of the lists that were appended to, within `left_afterwards`


def registered(module: nn.Module, reduced: Any) -> Any:
    """Return the reduce value of `module` with its registries; `reduced` is the one without them."""
    kind: Any = type(module)
    places = [place for place in _lists_of(kind) if any(item is module for item in _list(place))]
    if not places:
        return reduced
    found = module.__reduce_ex__(4) if reduced is NotImplemented else reduced
    function, args, state, _, _, set_state = (*found, *[None] * 6)[:6]
    return function, args, (places, set_state, state), None, None, _enter


@contextmanager
def left_afterwards() -> Iterator[None]:
    """Restore the lists at the end of the ``with`` block: an engine would otherwise keep the models of all cells."""
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
    """Return the list attributes of library classes among `kind` and its bases."""
    if kind in _known:
        return _known[kind]
    found: list[Place] = []
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        if cloudpickle.cloudpickle._should_pickle_by_reference(base):
            found += [(base, name) for name, value in vars(base).items() if type(value) is list and not name.startswith("__")]
    _known[kind] = tuple(found)
    return _known[kind]
