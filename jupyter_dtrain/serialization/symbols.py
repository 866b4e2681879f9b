"""Objects of which each process has one by a name, made when it is first asked for: another process's may be refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

_MADE_BY_CODE = 1 << 9  # a flag of classes that a `class` statement or the like has made


def is_symbol(value: Any) -> bool:
    """Return whether `value` comes to itself when its class is asked for it as a pickle would."""
    kind = type(value)
    if type(kind) is not type or "__new__" not in vars(kind) or not _says_how_it_reduces(kind):
        return False
    with suppress(Exception):
        function, arguments, *_ = value.__reduce_ex__(4)
        return function is kind and function(*arguments) is value
    return False


def _says_how_it_reduces(kind: type) -> bool:
    return any("__reduce__" in vars(base) or "__reduce_ex__" in vars(base) for base in kind.__mro__ if base.__flags__ & _MADE_BY_CODE)
