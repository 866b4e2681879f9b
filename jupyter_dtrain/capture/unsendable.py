"""Find which part of a cell's value cannot be sent, and why, after packing has failed."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import cloudpickle

from ..serialization.copy_restore import attributes_of
from ..serialization.pickler import Packer
from ..serialization.reducers import reduced

_MAX_DEPTH = 8  # how deep a value is searched


def message_of(name: str, line: int, value: object, reason: str) -> str:
    """Return the error message for a name whose value cannot be sent."""
    return (
        f"line {line} uses {name!r} (a {type(value).__name__}), which cannot be sent to the engines: {reason}.\n"
        f"Make {name!r} inside the cell instead, or pass what it is made from (a path, an address, a seed)."
    )


class Search:
    """Search values for parts that cannot be sent. `packer` makes a new `Packer`."""

    def __init__(self, packer: Callable[[], Packer]) -> None:
        self._packer = packer

    def why_not(self, value: object) -> str | None:
        """Return why `value` cannot be sent, ``None`` if it can."""
        error = self._failure(value)
        if error is None:
            return None
        path, culprit, error = self._narrow(value, error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return f"its {path.strip()} is a {type(culprit).__name__} ({text})" if path else text

    def _failure(self, value: object) -> Exception | None:
        try:
            self._packer().dump(value)
        except Exception as error:
            # The traceback's frames would keep the values alive until the next garbage collection.
            error.__context__ = error.__cause__ = None
            return error.with_traceback(None)
        return None

    def _narrow(self, value: object, error: Exception) -> tuple[str, object, Exception]:
        """Descend from `value` to the part that cannot be sent; return the path to it as the user would write it."""
        path = ""
        met = {id(value)}
        for _ in range(_MAX_DEPTH):
            for step, part in _parts(value) if not _is_refused(value) else ():
                if id(part) not in met and (failure := self._failure(part)) is not None:
                    met.add(id(part))
                    path, value, error = path + step, part, failure
                    break
            else:
                break
        return path, value, error


def _is_refused(value: object) -> bool:
    """Return whether `value` itself is refused, whatever its parts are."""
    try:
        reduced(value, ())
    except Exception:
        return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of `value`, each with the path to it."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, partial):
        yield ".func", value.func
        yield from ((f".args[{index}]", part) for index, part in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in value.keywords.items())
    elif isinstance(value, BaseException):
        yield from ((f".{name}", getattr(value, name)) for name in ("args", "__cause__", "__context__"))
    if isinstance(value, type):
        yield from ((f".{key}", part) for key, part in vars(value).items())
    else:
        yield from ((f".{key}", part) for key, part in (attributes_of(value) or {}).items())
        if type(value).__module__ == "__main__":  # its methods are sent along, with the globals that they use
            yield f" class {type(value).__name__}", type(value)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield f" variable {name!r}", cell.cell_contents
    for name in cloudpickle.cloudpickle._extract_code_globals(function.__code__):
        if name in function.__globals__:
            yield f" global {name!r}", function.__globals__[name]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from ((" default", part) for part in defaults)
