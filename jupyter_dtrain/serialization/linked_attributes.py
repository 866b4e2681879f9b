"""Objects whose ``__dict__`` has another name too: ``config = vars(args)``, or a dict that is its own (``self.__dict__ = self``).

Such a dict and the attributes are one in the other process too, so that what is written to the one is read from the other.
"""

from __future__ import annotations

import sys
from typing import Any


def linked_dict(obj: object) -> dict[str, Any] | None:
    """Return the ``__dict__`` of `obj` if others refer to it too, else ``None``."""
    kind = type(obj)
    if not kind.__flags__ & _IS_OF_PYTHON or hasattr(kind, "__setstate__"):  # which may look at each attribute
        return None
    own: Any = getattr(obj, "__dict__", None)
    if not isinstance(own, dict):
        return None
    return own if own is obj or (type(own) is dict and sys.getrefcount(own) > _OF_ONE) else None


def link(obj: object, own: dict[str, Any]) -> None:
    """Make `own` the ``__dict__`` of `obj`."""
    object.__setattr__(obj, "__dict__", own)


_IS_OF_PYTHON = 1 << 9  # a class that a ``class`` statement has made: ``Py_TPFLAGS_HEAPTYPE``


class _One:
    def __init__(self) -> None:
        self.attribute = 1


def _count(obj: object) -> int:
    own: Any = getattr(obj, "__dict__", None)
    return sys.getrefcount(own)


_OF_ONE = _count(_One())
