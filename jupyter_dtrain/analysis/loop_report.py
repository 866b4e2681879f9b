"""Report the loops of a cell and of the functions that it calls, and in which of them a run can resume, before anything is sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from .bindings import FUNCTIONS, is_generator
from .code_objects import mentioned, sources_of
from .resume_points import Unit
from .rewrite import Rewriting

_LONGEST = 48  # characters of a loop's text


@dataclass(frozen=True)
class LoopRow:
    """A loop in the report.

    Attributes
    ----------
    where, text : str
        Its line, with its function, and its source.
    why_not : str
        Why a run can resume only at an iteration of an outer loop; empty if it can at each iteration of this one.
    """

    where: str
    text: str
    why_not: str


def loop_rows(tree: ast.Module, namespace: Mapping[str, Any]) -> list[LoopRow]:
    """Return a row for each loop of a cell, and of the notebook's functions that it may call."""
    texts = [tree, *_texts_of(tree, namespace)]
    units = [unit for text in texts for unit in Rewriting(text, "", is_cell=text is tree).units]
    reasons = _reasons(units)
    rows: list[LoopRow] = []
    for text in texts:
        for owner in (text, *(node for node in ast.walk(text) if isinstance(node, FUNCTIONS))):
            name = "" if isinstance(owner, ast.Module) else owner.name
            if (owner is text and text is not tree) or (name and name not in reasons):
                continue
            unit = next((unit for unit in units if unit.key == _key(owner, text is tree)), None)
            for loop in _own_loops(owner):
                why_not = reasons.get(name, "")
                if name and is_generator(owner):
                    why_not = "in a generator"
                elif not why_not and (unit is None or loop.lineno not in {place.line for place in unit.loops.values()}):
                    why_not = "in a handler, a finally block, a match statement or a class body"
                where = f"line {loop.lineno}"
                rows.append(LoopRow(f"{name}(), {where}" if name else where, _text(loop), why_not))
    return rows


def _key(owner: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, in_cell: bool) -> tuple[str, int] | None:
    if isinstance(owner, ast.Module):
        return ("<module>", 1) if in_cell else None
    return owner.name, min([owner.lineno, *(part.lineno for part in owner.decorator_list)])


def _texts_of(tree: ast.Module, namespace: Mapping[str, Any]) -> Iterator[ast.Module]:
    """Yield the source texts of the functions and classes that the cell mentions, directly or through others."""
    pending, seen, found = list(mentioned(tree)), set[str](), dict[str, str]()
    while pending:
        value = namespace.get(pending.pop())
        methods = list(vars(value).values()) if isinstance(value, type) else [*vars(type(value)).values(), value]
        for filename, source in sources_of(method for method in methods if isinstance(method, FunctionType)).items():
            if filename not in found:
                found[filename] = source
                try:
                    text = ast.parse(source)
                except SyntaxError:
                    continue
                yield text
                names = mentioned(text) - seen
                seen |= names
                pending += names


def _reasons(units: list[Unit]) -> dict[str, str]:
    """Return, by name of called functions, why a run cannot resume inside; empty if it can."""
    by_name: dict[str, list[Unit]] = {}
    for unit in units:
        by_name.setdefault(unit.key[0], []).append(unit)
    found: dict[str, str] = {}
    pending = [(unit, "") for unit in units if unit.is_cell]
    while pending:
        unit, outer = pending.pop()
        for call in unit.calls.values():
            why_not = outer or (f"called in line {call.line} {call.why_not}" if call.why_not else "")
            if call.name not in found or (found[call.name] and not why_not):
                found[call.name] = why_not
                pending += ((inner, why_not) for inner in by_name.get(call.name, ()))
    return found


def _own_loops(owner: ast.AST) -> Iterator[ast.For | ast.While]:
    """Yield the loops of a function in source order, without those of functions inside it."""
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, ast.For | ast.While):
            yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            yield from _own_loops(node)


def _text(loop: ast.For | ast.While) -> str:
    if isinstance(loop, ast.While):
        text = f"while {ast.unparse(loop.test)}"
    else:
        target = ast.unparse(loop.target)
        text = f"for {target[1:-1] if isinstance(loop.target, ast.Tuple) else target} in {ast.unparse(loop.iter)}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def loop_table(rows: list[LoopRow]) -> str:
    """Return the rows as a text table; empty without rows."""
    if not rows:
        return ""
    widths = [max(len(row.where) for row in rows), max(len(row.text) for row in rows)]
    lines = [
        f"{row.where:<{widths[0]}}  {row.text:<{widths[1]}}  {f'at an outer loop: {row.why_not}' if row.why_not else 'at any iteration'}"
        for row in rows
    ]
    return "\n".join(["Where the cell can resume if an engine is lost:", *lines])
