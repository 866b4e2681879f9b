"""Number the statements and calls of a source text, so that a run can tell its position, and build syntax nodes for rewriting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar


class Numbers:
    """Numbers of the statements and calls of a source text."""

    def __init__(self, tree: ast.Module, first: int) -> None:
        self.next = first
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._last_of_header: dict[int, int] = {}
        self._block(tree.body)

    def first(self, node: ast.AST) -> int:
        """Return the number of a statement or call."""
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


def name_of(call: ast.Call) -> str:
    """Return the name by which a function or method is called, empty if there is none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement in source order."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        value = getattr(statement, name, None)
        if name in ("handlers", "cases"):
            for part in value or ():
                yield part.body
        elif value:
            yield value


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node in evaluation order, without blocks."""
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


# Syntax nodes by which rewritten code calls its run.

RUNTIME = "__dtrain__"
"""Name in `builtins` by which rewritten code finds the run."""

LIVE = -1
"""Jump target of a run that does not jump."""

Node = TypeVar("Node", bound=ast.AST)


def runtime(attribute: str) -> ast.Attribute:
    """Return an expression for an attribute of the run."""
    return ast.Attribute(ast.Name(RUNTIME, ast.Load()), attribute, ast.Load())


def ask(method: str, *args: int | str | ast.expr) -> ast.Call:
    """Return a call of a method of the run."""
    return ast.Call(runtime(method), [arg if isinstance(arg, ast.expr) else ast.Constant(arg) for arg in args], [])


def at_compare(compare: type[ast.cmpop], number: int) -> ast.Compare:
    """Return a comparison of the run's jump target with `number`."""
    return ast.Compare(runtime("at"), [compare()], [ast.Constant(number)])


def placed_at(place: ast.AST, node: Node, *, whole: bool = False) -> Node:
    """Set the source position of `node`, and of new nodes inside it, to the start of `place`, or with `whole` to all of it."""
    line, column = place.lineno, place.col_offset  # type: ignore[attr-defined]  # a statement or an expression
    end = (place.end_lineno, place.end_col_offset) if whole else (line, column)  # type: ignore[attr-defined]
    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop()
        if not hasattr(part, "lineno"):
            part.lineno, part.col_offset = line, column  # type: ignore[attr-defined]
            part.end_lineno, part.end_col_offset = end  # type: ignore[attr-defined]
            pending += ast.iter_child_nodes(part)
    return node


def keep_value(last: ast.Expr) -> ast.stmt:
    """Return the last line of a cell as a statement that assigns its value to an attribute of the run."""
    value = ast.Attribute(ast.Name(RUNTIME, ast.Load()), "value", ast.Store())
    return ast.fix_missing_locations(placed_at(last, ast.Assign([value], last.value), whole=True))


def is_silenced(source: str, tree: ast.Module) -> bool:
    """Return whether a semicolon follows the last expression of a cell, so that Jupyter does not show its value.

    IPython 8.5 has a decorator of magics for that, and earlier versions have nothing.
    """
    if not tree.body:
        return False
    last = tree.body[-1]
    line = source.splitlines()[(last.end_lineno or last.lineno) - 1].encode()
    return line[last.end_col_offset :].lstrip().startswith(b";")
