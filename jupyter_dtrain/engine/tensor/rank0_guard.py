"""Branches that rank 0 alone takes: ``if is_main(): …``.

An exchange in one would wait for ranks that never come, or meet another exchange of theirs. So where the cell has asked `is_main`, each
exchange looks first whether it stands in such a branch, by the user's own text: an error at once, in the line that is to be changed.
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
    """What is known of the branches of a run, while it is installed.

    Parameters
    ----------
    sources : mapping of str to str
        Texts of other cells by the names of their files.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._spans: dict[str, list[tuple[Place, Place]]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let exchanges look, until the end of the ``with`` block."""
        with current_run.having(rank0_branches=self):
            yield

    def asked(self) -> None:
        """Note that the user's code has asked whether this is rank 0, which it is."""
        frame = next(users_frames(), None)
        filename = "" if frame is None else frame.f_code.co_filename
        if filename and filename not in self._spans:
            self._spans[filename] = _branches(self._sources.get(filename) or "".join(linecache.getlines(filename)))

    def check(self) -> None:
        """Raise RuntimeError where the user's code is in such a branch."""
        if (line := self.line()) is not None:
            raise RuntimeError(
                f"Line {line} needs all engines (it reads a value over the batch, for example), but `is_main()` lets rank 0"
                " alone come here. Read the value before the branch, as in `value = loss.item()`."
            )

    def line(self) -> int | None:
        """Return the line of such a branch in which the user's code is, if it is in one."""
        if not self._spans:
            return None
        for frame in users_frames():
            spans = self._spans.get(frame.f_code.co_filename, [])
            if any(first[0] <= frame.f_lineno <= last[0] for first, last in spans) and _is_within(frame, spans):
                return frame.f_lineno
        return None


def alone_now() -> bool:
    """Return whether the user's code is in a branch that rank 0 alone takes."""
    return current_run.rank0_branches is not None and current_run.rank0_branches.line() is not None


def all_ranks_come() -> None:
    """Look before a collective whether all ranks make this one now: not where rank 0 alone comes, nor another thread. RuntimeError."""
    if current_run.rank0_branches is not None:
        current_run.rank0_branches.check()
    in_turn()


def _branches(text: str) -> list[tuple[Place, Place]]:
    """Return from where to where those branches go in a text."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # of a cell with magics, as it stands in the notebook
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
