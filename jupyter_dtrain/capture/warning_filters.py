"""Warning filters, as they are read in one process and set in another, which may lack the classes of some warnings.

Such a class (of the notebook, or of a library that is not imported there) is replaced by one that stands for all classes of its name.
So filters for classes that arrive later take effect, and the list is complete when it comes home.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from operator import attrgetter
from typing import Any, cast

Told = tuple[Any, str, tuple[str, str], str, int]
"""The arguments of ``warnings.filterwarnings``, with the category by its module and name."""


class _ByName(type):
    """Type of classes that have all classes of the same name as subclasses."""

    def __subclasscheck__(cls, kind: type) -> bool:
        return type.__subclasscheck__(cls, kind) or any(_name_of(base) == _name_of(cls) for base in kind.__mro__)


def warning_filters() -> list[Told]:
    """Return the filters of this process, the first to be asked first."""
    return list(map(_told, _filters()))


def set_warning_filters(filters: Sequence[Told]) -> None:
    """Set the filters of this process. Those that it has are kept as they are."""
    have = defaultdict(list)
    for one in _filters():
        have[_told(one)].append(one)
    new = [have[told].pop(0) if have[told] else _made(told) for told in filters]
    put_filters(new)


def put_filters(new: Sequence[Any]) -> None:
    """Let these be the entries of ``warnings.filters``."""
    # Python shows a warning again that it has shown before if the filters are set, even to what they were.
    if [*map(id, new)] != [*map(id, _filters())]:
        warnings.resetwarnings()
        _filters().extend(new)


def forget_classes() -> None:
    """Let filters for classes that a cell has brought mean all classes of their names: the next cell brings its own."""
    for index, one in enumerate(filters := _filters()):
        if _found(_name_of(one[2])) is not one[2]:
            filters[index] = (*one[:2], _by_name(*_name_of(one[2])), *one[3:])


def find_classes() -> None:
    """Let filters mean the class of their name, now that a cell has brought it."""
    for index, one in enumerate(filters := _filters()):
        if isinstance(one[2], _ByName) and (kind := _found(_name_of(one[2]))) is not None:
            filters[index] = (*one[:2], kind, *one[3:])


def _filters() -> list[Any]:
    return cast("list[Any]", warnings.filters)


def _told(one: tuple[Any, ...]) -> Told:
    action, message, kind, module, line = one
    return action, _text(message), _name_of(kind), _text(module), line


def _text(pattern: Any) -> str:
    return getattr(pattern, "pattern", pattern) or ""  # Python's default filters have strings


def _name_of(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def _made(told: Told) -> tuple[Any, ...]:
    action, message, name, module, line = told
    kind = _found(name) or _by_name(*name)
    return action, re.compile(message, re.IGNORECASE) if message else None, kind, re.compile(module) if module else None, line


def _found(name: tuple[str, str]) -> type | None:
    try:
        kind = attrgetter(name[1])(sys.modules[name[0]])
    except (KeyError, AttributeError):
        return None
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else None


@cache
def _by_name(module: str, qualname: str) -> type:
    return _ByName(qualname.rpartition(".")[2], (Warning,), {"__module__": module, "__qualname__": qualname})
