"""Pieces of syntax with which rewritten text asks the run that it is part of."""

from __future__ import annotations

import ast
from typing import TypeVar

RUNTIME = "__dtrain__"
"""The name, among Python's own, by which rewritten text reaches the run."""

LIVE = -1
"""The place to jump to of a run that does not jump."""

Node = TypeVar("Node", bound=ast.AST)


def runtime(attribute: str) -> ast.Attribute:
    """Return what reads an attribute of the run."""
    return ast.Attribute(ast.Name(RUNTIME, ast.Load()), attribute, ast.Load())


def ask(method: str, *args: int | str | ast.expr) -> ast.Call:
    """Return a call of a method of the run."""
    return ast.Call(runtime(method), [arg if isinstance(arg, ast.expr) else ast.Constant(arg) for arg in args], [])


def at_compare(compare: type[ast.cmpop], number: int) -> ast.Compare:
    """Return the comparison of where the run is to jump to with `number`."""
    return ast.Compare(runtime("at"), [compare()], [ast.Constant(number)])


def placed_at(place: ast.AST, node: Node, *, whole: bool = False) -> Node:
    """Give `node`, and what in it has no place in the text yet, that of `place`: its start, or all of it."""
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
    """Return the last line of a cell as one that gives its value to the run."""
    value = ast.Attribute(ast.Name(RUNTIME, ast.Load()), "value", ast.Store())
    return ast.fix_missing_locations(placed_at(last, ast.Assign([value], last.value), whole=True))
