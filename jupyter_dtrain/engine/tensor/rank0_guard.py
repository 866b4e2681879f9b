"""Refuse collectives in branches that only rank 0 takes: ``if is_main(): …``.

A collective in such a branch would wait for ranks that never arrive, or match another collective of theirs. Once the cell has called
`is_main`, each collective checks by the cell's source text whether it runs in such a branch, and raises an error that names the line.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from ..current_run import current_run
from ..user_frames import place_of, users_frames
from .thread_guard import in_turn

Place = tuple[int, int]  # line and column


class Alone:
    """Finds branches that only rank 0 takes, while it is installed.

    Parameters
    ----------
    sources : mapping of str to str
        Source text of other cells by file name.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._spans: dict[str, list[tuple[Place, Place]]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let collectives check the branch that they run in, until the end of the ``with`` block."""
        with current_run.having(rank0_branches=self):
            yield

    def asked(self) -> None:
        """Record that the user's code has called `is_main` on rank 0: find the branches in its file."""
        frame = next(users_frames(), None)
        filename = "" if frame is None else frame.f_code.co_filename
        if filename and filename not in self._spans:
            self._spans[filename] = _branches(self._sources.get(filename) or "".join(linecache.getlines(filename)))

    def check(self) -> None:
        """Raise RuntimeError if the user's code is in a branch that only rank 0 takes."""
        if (line := self.line()) is not None:
            raise RuntimeError(
                f"Line {line} needs all engines (it reads a value over the batch, for example), but `is_main()` lets rank 0"
                " alone come here. Read the value before the branch, as in `value = loss.item()`."
            )

    def line(self) -> int | None:
        """Return the running line of the user's code if it is in a branch that only rank 0 takes, else ``None``."""
        if not self._spans:
            return None
        for frame in users_frames():
            spans = self._spans.get(frame.f_code.co_filename, [])
            if any(first[0] <= frame.f_lineno <= last[0] for first, last in spans) and _is_within(frame, spans):
                return frame.f_lineno
        return None


def alone_now() -> bool:
    """Return whether the user's code is in a branch that only rank 0 takes."""
    return current_run.rank0_branches is not None and current_run.rank0_branches.line() is not None


def all_ranks_come() -> None:
    """Check before a collective that all ranks run it now.

    Raises
    ------
    RuntimeError
        The user's code is in a branch that only rank 0 takes, or another thread of the cell runs collectives too.
    """
    if current_run.rank0_branches is not None:
        current_run.rank0_branches.check()
    in_turn()


def _branches(text: str) -> list[tuple[Place, Place]]:
    """Return the spans of the branches of a source text that only rank 0 takes."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # the text of a notebook cell that has magics
        return []
    found: list[tuple[ast.stmt | ast.expr, ast.stmt | ast.expr]] = []
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) if _asks(test):
                found.append((node.body[0], node.body[-1]))
            case ast.IfExp(test=test, body=body) if _asks(test):
                found.append((body, body))
            case ast.BoolOp(op=ast.And(), values=[first, second, *rest]) if _asks(first):
                found.append((second, [second, *rest][-1]))
    return [((first.lineno, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)) for first, last in found]


def _asks(test: ast.expr) -> bool:
    match test:
        case ast.Call(func=ast.Name(id="is_main") | ast.Attribute(attr="is_main")):
            return True
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_asks, values))
    return False


def _is_within(frame: FrameType, spans: list[tuple[Place, Place]]) -> bool:
    line, column = place_of(frame)
    return line is not None and any(first <= (line, column) < last for first, last in spans)
