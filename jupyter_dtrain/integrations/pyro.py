"""Send state that a library keeps in one of its modules, and to which no name of the notebook refers.

Such an object is sent with the names, and unpickled into the reader's own object. So what it shares with the names (the parameters of a
guide) stays shared, and changes in the cell are returned like any others.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .base import Integration

_PLACES = {"pyro.poutine.runtime": "_PYRO_PARAM_STORE"}  # by module, the name of the object in it


def library_states() -> list[object]:
    """Return these objects of the libraries that are imported."""
    modules = sys.modules.copy()
    return [vars(modules[module])[name] for module, name in _PLACES.items() if module in modules and name in vars(modules[module])]


def reduced_state(obj: object) -> Any:
    """Return a reduction of such an object, ``NotImplemented`` for any other."""
    for place, name in _PLACES.items():
        if place in sys.modules and vars(sys.modules[place]).get(name) is obj:
            return _readers_own, (place, name), vars(obj), None, None, _become
    return NotImplemented


def _readers_own(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def _become(obj: Any, attributes: dict[str, Any]) -> None:
    """Replace the attributes of `obj`."""
    vars(obj).clear()
    vars(obj).update(attributes)


class Pyro(Integration):
    """Pyro's parameter store is sent with every cell."""

    objects_go_along = True

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of the store."""
        return reduced_state(obj)

    def states(self) -> list[object]:
        """Return the store."""
        return library_states()


INTEGRATION = Pyro()
