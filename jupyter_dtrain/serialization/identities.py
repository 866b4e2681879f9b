"""What ``id`` returns in a cell: of the notebook's objects what it returns in the notebook, so that ids of both are compared.

Ids that an earlier cell has kept (of parameters that get another learning rate) are numbers, which say nothing of their objects. So the
notebook sends the ids of its objects if code of the cell names ``id``, and that code finds a function that knows them. Libraries, which
compare only what they have asked for themselves, call Python's.
"""

from __future__ import annotations

import builtins
import re
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

_ID = re.compile(r"(?<![.\w])id\b(?!\s*=(?!=))")
_NAME = "id"
_CONSTANTS = (None, True, False, Ellipsis, NotImplemented)
_MADE_HERE = 1 << 61  # no address in the notebook's process has this bit
_asked: list[Callable[[object], int]] = []  # of the run, if its code names `id`
_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # modules and tensors of its cell by id


def found_by_name(module: str, name: str) -> Callable[[object], int] | None:
    """Return the function that stands for ``id``, if that is the name and code of the run asks for ids."""
    return _asked[-1] if _asked and (module, name) == (builtins.__name__, _NAME) else None


def reference_of(number: int) -> tuple[str, object] | None:
    """Return a reference by which a reader gets the id of its own object; ``None`` for other numbers, or where the object is gone."""
    owner = _made.get(number) if number & _MADE_HERE else None
    return None if owner is None else ("id", owner)


def read_id(obj: object) -> int:
    """Return the id of a reader's object."""
    return _asked[-1](obj) if _asked else builtins.id(obj)


def ids_of(objects: Iterable[object], texts: Iterable[str]) -> bytes:
    """Return the ids of the notebook's `objects` for :class:`Identities`; empty if no text of the user's code names ``id``.

    Nor are they sent where an object may be looked up by its address.
    """
    texts = [*texts]
    if not any(map(_ID.search, texts)) or any("ctypes" in text for text in texts):
        return b""
    return array("Q", map(id, (*_CONSTANTS, *objects))).tobytes()


class Identities:
    """The ids of the notebook's objects in a cell.

    Made before the objects are read: among them may be the function itself, as a default of an argument.

    Parameters
    ----------
    ids : bytes
        As returned by :func:`ids_of`.
    """

    def __init__(self, ids: bytes) -> None:
        self._numbers = array("Q", ids)
        self._there: dict[int, int] = {}
        _asked.clear()
        _made.clear()
        if self._numbers:
            _asked.append(self._function())

    def know(self, objects: list[object]) -> list[object]:
        """Return `objects`, the copies in this process in the same order, which are kept by others."""
        if self._numbers:
            self._there.update(zip(map(id, (*_CONSTANTS, *objects)), self._numbers, strict=True))
        return objects

    def stand_in(self, parts: dict[str, Any], wholes: dict[str, Any]) -> None:
        """Let parts of objects, by name, have the ids of the whole ones."""
        self._there.update((id(part), self._there[id(wholes[name])]) for name, part in parts.items() if id(wholes[name]) in self._there)

    @property
    def names(self) -> dict[str, object]:
        """The function by its name, for the user's code."""
        return {_NAME: _asked[-1]} if _asked else {}

    @contextmanager
    def installed(self, namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Let code with these globals find the function until the end of the ``with`` block."""
        asking = [names for names in namespaces if _NAME not in names] if _asked else []
        for names in asking:
            names.update(self.names)
        try:
            yield
        finally:
            for names in asking:
                if names.get(_NAME) in _asked:
                    del names[_NAME]

    def _function(self) -> Callable[[object], int]:
        there = self._there

        @wraps(builtins.id)
        def found(obj: object, /) -> int:
            own = builtins.id(obj)
            number = there.get(own)
            if number is None:
                number = own | _MADE_HERE
                if isinstance(obj, nn.Module | nn.Parameter) or type(obj) is torch.Tensor:
                    _made[number] = obj
            return number

        return found
