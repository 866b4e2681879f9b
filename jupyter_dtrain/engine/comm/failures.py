"""Serialize an error of one rank so that the others can raise the same error."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ...serialization.exceptions import made_exception
from ..user_frames import is_users

Failures = list[bytes | None]
"""The serialized error of each rank, ``None`` for ranks without one."""

LONGEST = 1 << 15  # most bytes of an error; a larger one is reduced to its text
_DEPTH = 4  # depth of the chain of causes


class FailedElsewhere(BaseException):
    """Raised in place of the result of an exchange: another rank has failed before it.

    Not an ``Exception``, so that no handler on the way catches it.

    Parameters
    ----------
    failures : list
        The serialized error of each rank.
    """

    def __init__(self, failures: Failures) -> None:
        super().__init__("another rank has failed")
        self.failures = failures


def to_bytes(error: BaseException) -> bytes:
    """Return `error` serialized, in at most `LONGEST` bytes if possible."""
    content = (_described(error), _place(error))
    for value in (content, (_shortened(error), content[1])):
        pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if len(pickled) <= LONGEST:
            break
    return pickled


def error_of(failure: bytes, rank: int) -> BaseException:
    """Return the error of `rank` from its serialized form: same type, message and attributes."""
    described, _ = pickle.loads(failure)
    error = _made(described)
    with suppress(Exception):  # an error class with slots
        error.__dict__[RAISED_ON] = rank
    return error


RAISED_ON = "_raised_on_rank"
"""Attribute of an error that was first raised on another rank; its value is that rank."""


def text_of(failure: bytes) -> str:
    """Return a description of the error: its type, its message and the user's line."""
    with suppress(Exception):
        described, place = pickle.loads(failure)
        return f"{described['name'].rpartition('.')[2]}{place} ({described['text'] or 'without a message'})"
    return "an error"


def _described(error: BaseException, depth: int = _DEPTH) -> dict[str, Any]:
    kind = type(error)
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "text": _text(error),
        "args": [_pickled(value) for value in error.args],
        "attributes": {name: value for name, item in vars(error).items() if (value := _pickled(item)) is not None},
        "cause": None if error.__cause__ is None or not depth else _described(error.__cause__, depth - 1),
        "is_plain": not error.__suppress_context__,
    }


def _shortened(error: BaseException) -> dict[str, Any]:
    text = pickle.dumps(_text(error)[: LONGEST // 8])
    described = {"module": type(error).__module__, "name": type(error).__qualname__, "text": _text(error)[: LONGEST // 8]}
    return {**described, "args": [text], "attributes": {}, "cause": None, "is_plain": True}


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's `__str__` fails
        return ""


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        return None


def _made(described: dict[str, Any]) -> BaseException:
    args = tuple(described["text"] if value is None else pickle.loads(value) for value in described["args"])
    kind = _kind(described["module"], described["name"])
    if kind is None:
        error: BaseException = RuntimeError(f"{described['name']}: {described['text']}")
    else:
        error = made_exception(kind, args)
    with suppress(Exception):
        vars(error).update({name: pickle.loads(value) for name, value in described["attributes"].items()})
    if described["cause"] is not None:
        error.__cause__ = _made(described["cause"])
    error.__suppress_context__ = not described["is_plain"]
    return error


def _kind(module: str, name: str) -> type[BaseException] | None:
    """Return the error class of that name in this process: the latest, since a cell that ran twice defined it twice."""
    found = [kind for kind in _kinds(BaseException) if kind.__module__ == module and kind.__qualname__ == name]
    return found[-1] if found else None


def _kinds(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _place(error: BaseException) -> str:
    """Return the last line of user code in the error's traceback, as `` at line 3``; empty if there is none."""
    line, trace = None, error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if is_users(filename):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"
