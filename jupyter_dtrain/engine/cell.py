"""Running the cell's text, and what is told of an error in it."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import traceback
import unittest
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from .event_loop import CellLoop
from .loops import Loops

_BROKEN = ("gloo", "nccl", "connection closed by peer")
_LIBRARIES = frozenset(("site-packages", "dist-packages", "lib-dynload", Path(unittest.__file__).parents[1].name))
_OURS = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Frame:
    """One line of a traceback. `text` is the source line where this side knows it."""

    filename: str
    line: int
    function: str
    text: str | None


@dataclass(frozen=True)
class Failure:
    """An exception that ended the cell on one rank.

    Attributes
    ----------
    name, message : str
        The exception's type and text.
    frames : list of Frame
        From the cell's line down, without this project's own frames.
    secondary : bool
        It is no cause: another rank has left (a collective that broke, a store that closed), or the run was interrupted.
    """

    name: str
    message: str
    frames: list[Frame]
    secondary: bool


def run_cell(source: str, filename: str, namespace: dict[str, Any], loops: Loops | None = None) -> Any:
    """Run `source` in `namespace` and return the value of its last line if that is an expression.

    With `loops` its loops can be resumed, and it goes on where they are to jump to.
    """
    tree = ast.parse(source, filename)
    # Tracebacks and inspect.getsource find the text here; mtime None keeps it from being checked against a file.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    if loops is not None and not _awaits(tree, filename):
        return loops.run(tree, filename, namespace)
    last: ast.Expression | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    loop = CellLoop()
    try:
        _run(compile(tree, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), namespace, loop)
        if last is None:
            return None
        return _run(compile(last, filename, "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), namespace, loop)
    finally:
        loop.close()


def _awaits(tree: ast.Module, filename: str) -> bool:
    code = compile(tree, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _run(code: CodeType, namespace: dict[str, Any], loop: CellLoop) -> Any:
    value = eval(code, namespace)
    return loop.run(value) if code.co_flags & inspect.CO_COROUTINE else value


def describe(error: BaseException) -> Failure:
    """Return what the notebook is told of `error`."""
    frames = [
        Frame(item.filename, item.lineno or 0, item.name, item.line or None)
        for item in traceback.extract_tb(error.__traceback__)
        if not is_ours(item.filename)
    ]
    return Failure(type(error).__name__, str(error), frames, secondary=_is_secondary(error))


def is_ours(filename: str) -> bool:
    """Return whether a file is this project's, or the one by which it takes the places of others' functions."""
    return filename.startswith(_OURS) or filename.endswith("unittest/mock.py")


def users_line() -> tuple[str, int] | None:
    """Return the file and line of the user's own code that is running: the innermost frame that is neither ours nor a library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


@cache
def is_users(filename: str) -> bool:
    """Return whether a file is the user's own: neither a library's nor this project's."""
    return not filename.startswith((_OURS, "<frozen", "<string>")) and not _LIBRARIES.intersection(Path(filename).parts)


def _is_secondary(error: BaseException) -> bool:
    if isinstance(error, KeyboardInterrupt) or type(error).__name__.startswith("Dist"):  # DistBackendError, DistNetworkError, …
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _BROKEN)


def forget_frames(error: BaseException) -> None:
    """Release what the frames of `error` hold: models, graphs and reducers would outlive the run with them."""
    seen: BaseException | None = error
    while seen is not None:
        trace: TracebackType | None = seen.__traceback__
        if trace is not None:
            traceback.clear_frames(trace)
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
