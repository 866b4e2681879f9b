"""State that a library keeps in a module of its own, and no name of a notebook leads to: a cell is to find the notebook's there.

Such an object goes along with the names, and is read as the reader's own one, which becomes like it. So what it shares with them (the
parameters of a guide) stays shared, and what the cell changes in it comes home as any other change.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .base import Integration

_PLACES = {"pyro.poutine.runtime": "_PYRO_PARAM_STORE"}  # module to the name in it


def library_states() -> list[object]:
    """Return the objects with such state of the libraries that are imported."""
    modules = sys.modules.copy()
    return [vars(modules[module])[name] for module, name in _PLACES.items() if module in modules and name in vars(modules[module])]


def reduced_state(obj: object) -> Any:
    """Return how one of them reduces, ``NotImplemented`` for any other object."""
    for place, name in _PLACES.items():
        if place in sys.modules and vars(sys.modules[place]).get(name) is obj:
            return _readers_own, (place, name), vars(obj), None, None, _become
    return NotImplemented


def _readers_own(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def _become(obj: Any, attributes: dict[str, Any]) -> None:
    """Give `obj` these attributes and no others."""
    vars(obj).clear()
    vars(obj).update(attributes)


class Pyro(Integration):
    """Its store of parameters goes along with every cell."""

    objects_go_along = True

    def reduce(self, obj: Any) -> Any:
        """Return how the store reduces."""
        return reduced_state(obj)

    def states(self) -> list[object]:
        """Return the store."""
        return library_states()


INTEGRATION = Pyro()
