"""Numbers of the statements and calls of a text, by which a run says where it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator


class Numbers:
    """Numbers of the statements and calls of a text."""

    def __init__(self, tree: ast.Module, first: int) -> None:
        self.next = first
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._last_of_header: dict[int, int] = {}
        self._block(tree.body)

    def first(self, node: ast.AST) -> int:
        """Return the number of a statement or call itself."""
        return self._first[id(node)]

    def last(self, node: ast.AST) -> int:
        """Return the last number inside a statement."""
        return self._last[id(node)]

    def end_of(self, body: list[ast.stmt]) -> int:
        """Return the last number inside a block."""
        return self._last[id(body[-1])]

    def end_of_header(self, statement: ast.stmt) -> int:
        """Return the last number in the condition of an ``if`` or ``while``."""
        return self._last_of_header[id(statement)]

    def _take(self, node: ast.AST) -> None:
        self._first[id(node)] = self.next
        self.next += 1

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._take(statement)
            for value in parts_of(statement):
                if not isinstance(value, ast.stmt | ast.ExceptHandler | ast.match_case):
                    self._calls(value)
            self._last_of_header[id(statement)] = self.next - 1
            for body_inside in blocks_of(statement):
                self._block(body_inside)
            self._last[id(statement)] = self.next - 1

    def _calls(self, node: ast.AST) -> None:
        for child in parts_of(node):
            self._calls(child)
        if isinstance(node, ast.Call):
            self._take(node)


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement, in the order of the text."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        value = getattr(statement, name, None)
        if name in ("handlers", "cases"):
            for part in value or ():
                yield part.body
        elif value:
            yield value


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node in the order of evaluation, blocks left out."""
    fields = ("value", "targets") if isinstance(node, ast.Assign) else node._fields
    for name in fields:
        value = getattr(node, name, None)
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, ast.AST) and not isinstance(part, ast.stmt):
                if isinstance(part, ast.ExceptHandler):
                    if part.type is not None:
                        yield part.type
                elif isinstance(part, ast.match_case):
                    yield part.pattern
                    if part.guard is not None:
                        yield part.guard
                else:
                    yield part
