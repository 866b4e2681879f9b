"""Tell whether the user's code would catch an error raised at the current line: ``try: … except ValueError: continue``.

A sample that cannot be read, or that `forward` refuses, is in one rank's shard. An error that nobody catches ends the cell on all ranks.
If the cell catches the error and continues, all ranks have to raise it, so they have to ask each other (`agreed`). That costs one exchange
for each model call and each batch. Only cells with such handlers pay for it; the handlers are found in the source text.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from ..current_run import current_run
from ..user_frames import is_ours, is_users, place_of
from .rank0_guard import alone_now

Span = tuple[tuple[int, int], tuple[int, int]]  # from a line and column to another

_NEVER_ERRORS = frozenset(("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "StopAsyncIteration", "CancelledError"))
_OUTER = str(Path(__file__).parents[1] / "cell.py")  # runs the cell and catches everything: the walk up the stack ends here
_TORCH = str(Path(torch.__file__).parent)
_PASSED_ON = (contextlib.nullcontext, contextlib.closing, contextlib.redirect_stdout, contextlib.redirect_stderr, contextlib.chdir)


class Catches:
    """Finds the ``try`` and ``with`` statements around the running code, while it is installed.

    Parameters
    ----------
    sources : mapping of str to str
        Source text of other cells by file name.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._trees: dict[str, ast.Module | None] = {}
        self._spans: dict[int, tuple[CodeType, tuple[Span, ...]]] = {}  # by id, as hashing code takes microseconds; the code keeps its id

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let :func:`may_be_caught` use this object until the end of the ``with`` block."""
        with current_run.having(handlers=self):
            yield

    def here(self, frame: FrameType | None) -> bool:
        """Return whether `frame` or one of its callers would catch an error."""
        while frame is not None:
            code = frame.f_code
            known = self._spans.get(id(code))
            if known is None:
                known = self._spans[id(code)] = code, self._of(frame)
            if known[1] and _is_within(frame, known[1]):
                return True
            if code.co_filename == _OUTER:
                return False
            frame = frame.f_back
        return False

    def _of(self, frame: FrameType) -> tuple[Span, ...]:
        filename = frame.f_code.co_filename
        if is_ours(filename) or filename.startswith(_TORCH):
            return ()
        own = is_users(filename)
        if not own and not {"site-packages", "dist-packages"}.intersection(Path(filename).parts):
            return ()
        if filename not in self._trees:
            self._trees[filename] = _parsed(self._sources.get(filename) or "".join(linecache.getlines(filename)))
        tree = self._trees[filename]
        lines = {line for *_, line in frame.f_code.co_lines() if line is not None}
        if tree is None or not lines:
            return ()
        first, last = min(lines), max(lines)
        found: list[Span] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and node.lineno <= last and (node.end_lineno or 0) >= first and _catches(node, frame, own=own):
                body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
                found.append(((body[0].lineno, body[0].col_offset), (body[-1].end_lineno or 0, body[-1].end_col_offset or 0)))
        return tuple(found)


def may_be_caught() -> bool:
    """Return whether the user's code would catch an error raised here and continue. All ranks at this line get the same answer."""
    return current_run.handlers is not None and current_run.handlers.here(sys._getframe(1)) and not alone_now()


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:  # the text of a notebook cell that has magics
        return None


def _catches(node: ast.stmt, frame: FrameType, *, own: bool) -> bool:
    """Return whether `node` may stop an error in its body from propagating. A library's handlers that end with ``raise`` do not count."""
    match node:
        case ast.Try(handlers=handlers, finalbody=last) | ast.TryStar(handlers=handlers, finalbody=last):
            caught = [handler for handler in handlers if not _NEVER_ERRORS.issuperset(_names_of(handler.type))]
            if not own:
                caught = [handler for handler in caught if not isinstance(handler.body[-1], ast.Raise)]
            return bool(caught) or any(
                isinstance(inner, ast.Return | ast.Break | ast.Continue) for outer in last for inner in ast.walk(outer)
            )
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return own and any(_may_suppress(item.context_expr, frame) for item in items)
    return False


def _names_of(kind: ast.expr | None) -> list[str]:
    """Return the names of the exceptions that a handler catches; ``BaseException`` for a bare ``except`` or an unreadable expression."""
    match kind:
        case None:
            return ["BaseException"]
        case ast.Tuple(elts=kinds):
            return [name for one in kinds for name in _names_of(one)]
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
    return ["BaseException"]


def _may_suppress(manager: ast.expr, frame: FrameType) -> bool:
    """Return whether a context manager may suppress an error: one of the user's code, one of `contextlib`, or an unknown one."""
    found = _value_of(manager.func if isinstance(manager, ast.Call) else manager, frame)
    if found is _UNKNOWN:
        return True
    kind = found if inspect.isroutine(found) or isinstance(found, type) else type(found)
    if kind in _PASSED_ON:
        return False
    kind = inspect.unwrap(kind)
    if getattr(kind, "__module__", None) == "contextlib":
        return True
    try:
        return is_users(inspect.getfile(kind))
    except (TypeError, OSError):  # written in C (a lock, a file), or defined in a notebook whose cells have no files
        return getattr(kind, "__module__", None) == "__main__"


_UNKNOWN = object()


def _value_of(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name or attribute in `frame`, of a call that of its function. Nothing is executed."""
    match expression:
        case ast.Name(id=name):
            for names in (frame.f_locals, frame.f_globals, vars(builtins)):
                if name in names:
                    return names[name]
        case ast.Attribute(value=value, attr=name):
            owner = _value_of(value, frame)
            if owner is not _UNKNOWN:
                return inspect.getattr_static(owner, name, _UNKNOWN)
        case ast.Call(func=function):
            return _value_of(function, frame)
    return _UNKNOWN


def _is_within(frame: FrameType, spans: tuple[Span, ...]) -> bool:
    line, column = place_of(frame)
    place = (frame.f_lineno if line is None else line, column)
    return any(first <= place < last for first, last in spans)
