"""Containers, and the variables of functions, modules and classes as mappings: their contents are copied, compared and restored."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import CellType
from typing import Any


class Cell(MutableMapping[str, Any]):
    """A closure cell of a function."""

    def __init__(self, cell: CellType, name: str) -> None:
        self._cell, self._name = cell, name

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._cell.cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self._cell.cell_contents

    def __iter__(self) -> Iterator[str]:
        return (name for name in (self._name,) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Globals(MutableMapping[str, Any]):
    """Some of the names of a module."""

    def __init__(self, names: dict[str, Any], some: Iterable[str]) -> None:
        self._all, self._names = names, tuple(some)

    def __getitem__(self, name: str) -> Any:
        return self._all[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._all[name] = value

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self._all)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ClassValues(MutableMapping[str, Any]):
    """The attributes of a class of the user."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self._kind)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._kind, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._kind, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in vars(self._kind) if not name.startswith("__") and not name.startswith("_abc_"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def copy_of(content: Any) -> Any:
    """Return a shallow copy of a holder's content."""
    match content:
        case OrderedDict() | Mapping() if not isinstance(content, dict) or isinstance(content, OrderedDict):
            return dict(content.items())
        case dict():
            return dict(dict.items(content))
        case list():
            return list.__getitem__(content, slice(None))
        case set():
            return set.copy(content)
        case bytearray():
            return bytes(content)
        case array():
            return content[:]
    return list(content)


def is_same(content: Any, copy: Any) -> bool:
    """Return whether `content` still has the same objects as `copy`, in the same order."""
    now = copy_of(content)
    if len(now) != len(copy):
        return False
    if isinstance(copy, dict):  # a cache drops the entry that comes first
        return all(key is other and value is old for (key, value), (other, old) in zip(now.items(), copy.items(), strict=True))
    if isinstance(copy, set | bytes | array):
        return bool(now == copy)
    return all(left is right for left, right in zip(now, copy, strict=True))


def refill(content: Any, copy: Any) -> None:
    """Restore `content` from `copy`, if it differs."""
    if is_same(content, copy):
        return
    match content:
        case OrderedDict():
            content.clear()
            content.update(copy)
        case dict():
            dict.clear(content)
            dict.update(content, copy)
        case list():
            list.__setitem__(content, slice(None), copy)
        case deque():
            content.clear()
            content.extend(copy)
        case set():
            set.clear(content)
            set.update(content, copy)
        case bytearray() | array():
            content[:] = copy
        case _:
            for key in [key for key in content if key not in copy]:
                del content[key]
            for key, value in copy.items():
                if key not in content or content[key] is not value:
                    content[key] = value
