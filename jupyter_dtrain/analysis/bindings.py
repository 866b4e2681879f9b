"""What a statement binds, and where: names, targets and spans in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Span = tuple[int, int, int, int]  # line, end line, column, end column


def spans_of(call: ast.Call) -> Iterator[Span]:
    """Yield where the bytecode may say that a call is: a method's call begins in the line of the method's name."""
    end_line, end = call.end_lineno or 0, call.end_col_offset or 0
    yield (call.lineno, end_line, call.col_offset, end)
    if isinstance(call.func, ast.Attribute) and call.func.end_lineno != call.lineno:
        yield (call.func.end_lineno or 0, end_line, (call.func.end_col_offset or 0) - len(call.func.attr), end)


def targets_of(target: ast.expr) -> tuple[Any, bool]:
    """Return the targets of a loop, names and tuples of them with ``None`` for others, and whether they are all names."""
    match target:
        case ast.Name():
            return target.id, True
        case ast.Tuple() | ast.List():
            parts = [targets_of(part) for part in target.elts if not isinstance(part, ast.Starred)]
            starred = [targets_of(part.value) for part in target.elts if isinstance(part, ast.Starred)]
            return tuple(target for target, _ in parts), all(plain for _, plain in (*parts, *starred))
    return None, False


def assigned_in(nodes: list[ast.stmt] | ast.AST) -> frozenset[str]:
    """Return the names that are assigned or deleted anywhere in these nodes."""
    found = set()
    for node in nodes if isinstance(nodes, list) else [nodes]:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                found.add(part.id)
    return frozenset(found)


def bound_by(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement binds, if it can be run again for them."""
    match statement:
        case ast.Assign():
            names = [part for target in statement.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            return frozenset(name.id for name in names if isinstance(name.ctx, ast.Store))
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr()):
            return frozenset({name})
        case ast.Import() | ast.ImportFrom() if statement.names[0].name != "*":
            return frozenset((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return frozenset({statement.name})
    return frozenset()


def shared_names(*nodes: ast.AST) -> frozenset[str]:
    """Return the names that functions assign in a scope around them."""
    return frozenset(
        name for node in nodes for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names
    )


def is_generator(function: ast.AST) -> bool:
    """Return whether a function's own body yields or awaits."""
    if isinstance(function, ast.AsyncFunctionDef):
        return True
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.AsyncFor | ast.AsyncWith):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))
    return False
