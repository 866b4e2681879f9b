"""Find the names and targets that statements bind, and the source spans of calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Span = tuple[int, int, int, int]  # line, end line, column, end column


def spans_of(call: ast.Call) -> Iterator[Span]:
    """Yield the spans that bytecode may report for a call: a method call may start in the line of the method's name."""
    end_line, end = call.end_lineno or 0, call.end_col_offset or 0
    yield (call.lineno, end_line, call.col_offset, end)
    if isinstance(call.func, ast.Attribute) and call.func.end_lineno != call.lineno:
        yield (call.func.end_lineno or 0, end_line, (call.func.end_col_offset or 0) - len(call.func.attr), end)


def targets_of(target: ast.expr) -> tuple[Any, bool]:
    """Return the targets of a loop (names, tuples of them, ``None`` for others), and whether all are names."""
    match target:
        case ast.Name():
            return target.id, True
        case ast.Tuple() | ast.List():
            parts = [targets_of(part) for part in target.elts if not isinstance(part, ast.Starred)]
            starred = [targets_of(part.value) for part in target.elts if isinstance(part, ast.Starred)]
            return tuple(target for target, _ in parts), all(plain for _, plain in (*parts, *starred))
    return None, False


def assigned_in(nodes: list[ast.stmt] | ast.AST) -> frozenset[str]:
    """Return the names that are assigned or deleted anywhere in the nodes."""
    found = set()
    for node in nodes if isinstance(nodes, list) else [nodes]:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                found.add(part.id)
    return frozenset(found)


def bound_by(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement binds, if it can be executed again to bind them; empty otherwise."""
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
    """Return the names that functions declare ``global`` or ``nonlocal``."""
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


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def suppresses(context: ast.expr) -> bool:
    """Return whether a ``with`` on `context` may leave its body early: ``suppress(KeyError)``, ``pytest.raises(…)``."""
    called = context.func if isinstance(context, ast.Call) else context
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return any(word in name.lower() for word in ("suppress", "ignore", "raises"))


def stored_names(node: ast.AST, *, certain: bool = False) -> set[str]:
    """Return the names that `node` may bind or delete in the cell's scope, including ``global`` names of functions.

    With `certain`, only the names that it binds on every path.
    """
    names: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(item.name)
                if not certain:
                    names.update(name for part in ast.walk(item) if isinstance(part, ast.Global) for name in part.names)
                continue
            case ast.Lambda():
                continue
            case _ if isinstance(item, COMPREHENSIONS):
                # A comprehension has its own targets; a walrus inside binds in the cell.
                if not certain:
                    names.update(part.target.id for part in ast.walk(item) if isinstance(part, ast.NamedExpr))
                continue
            case ast.BoolOp() if certain:
                pending.append(item.values[0])
                continue
            case ast.IfExp() if certain:
                pending.append(item.test)
                continue
            case ast.Compare() if certain:
                pending += [item.left, item.comparators[0]]
                continue
            case ast.AnnAssign(value=None):
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(item.id)
            case ast.alias():
                names.add((item.asname or item.name).partition(".")[0])
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                names.add(name)
        pending.extend(ast.iter_child_nodes(item))
    return names
