"""Views of dicts (``d.keys()``, ``MappingProxyType(d)``): of the same dict in the other process, so that they show its changes."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

MADE_BY: dict[type, Callable[[Any], Any]] = {
    type(made_by(kind())): made_by
    for kind in (dict, OrderedDict)
    for made_by in (kind.keys, kind.values, kind.items)  # the class's own, which a subclass may have replaced
}


def reduced_dict_view(obj: object) -> Any:
    """Return the reduce value of a view of a dict, else ``NotImplemented``."""
    kind = type(obj)
    make = MappingProxyType if kind is MappingProxyType else MADE_BY.get(kind)
    if make is None:
        return NotImplemented
    (viewed,) = gc.get_referents(obj)
    of_class = kind is MappingProxyType and type(viewed) is dict and "__module__" in viewed and "__doc__" in viewed
    return NotImplemented if of_class else (make, (viewed,))
