"""Determine where a run can resume in a source text: its statements, loops and calls, each with a number.

A run that resumes in another process has the values of its names, but not the interpreter's state: partial results of expressions, active
exception handlers, positions of generators. So a place is the next iteration of a loop, or a call of a function that is itself at such a
place, if nothing was computed before the call that is needed after it. Numbers increase in source order (those of calls in evaluation
order), so the numbers of a statement form an interval.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from typing import Any

from .ast_nodes import name_of, parts_of
from .bindings import Span

SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)
_COMPREHENSIONS = {
    ast.ListComp: "a list comprehension",
    ast.SetComp: "a set comprehension",
    ast.DictComp: "a dict comprehension",
    ast.GeneratorExp: "a generator expression",
    ast.Lambda: "a lambda",
}
# Calls of these builtins lead to no function of the user's with a loop.
_BUILTINS = frozenset(
    """abs all any bool bytes callable chr dict dir divmod enumerate filter float format frozenset getattr hasattr hash hex id int
    isinstance issubclass iter len list locals map max min object oct ord pow print range repr reversed round set setattr slice
    sorted str sum super tuple type vars zip""".split()  # noqa: SIM905  # legible
)
# Functions and methods that draw no random numbers.
_DRAW_NOTHING = frozenset(
    """arange children chunk items keys linspace modules named_parameters parameters product size split tqdm trange values""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class CallPlace:
    """A call: its number and line, the enclosing loops, outermost first, and its function's name.

    `why_not` says why a run cannot resume inside.
    """

    number: int
    line: int
    loops: tuple[int, ...]
    why_not: str | None
    name: str = ""


@dataclass(frozen=True)
class LoopPlace:
    """A loop.

    Attributes
    ----------
    number, line : int
    end_of_test, end_of_body : int
        Last numbers in the condition of a ``while``, and in the body.
    loops : tuple of int
        The enclosing loops, outermost first, and this one.
    targets : Any
        A name, a tuple of targets, or ``None`` for another kind of target.
    plain_targets : bool
        Whether all targets are names.
    rebound : frozenset of str
        Names in the iterable that the loop assigns.
    sources : tuple of str
        Names in the iterable.
    draws : bool
        Whether evaluating the iterable may draw random numbers.
    is_name : bool
        Whether the iterable is an existing object: a name, an attribute or an item.
    """

    number: int
    line: int
    end_of_test: int
    end_of_body: int
    loops: tuple[int, ...]
    targets: Any = None
    plain_targets: bool = True
    rebound: frozenset[str] = frozenset()
    sources: tuple[str, ...] = ()
    draws: bool = False
    is_name: bool = False


@dataclass
class Unit:
    """The places of a function, or of a cell.

    Attributes
    ----------
    key : (str, int)
        Name and first line of its code object.
    first_number : int
        Lowest number of its file.
    calls : dict
        Calls by their span in the bytecode.
    binders : dict of int to frozenset of str
        Statements that can be executed again to bind these names, by number.
    blocks : dict of int to tuple of int
        For each of `binders` the interval of its block: it can be executed again on the way to places inside.
    """

    filename: str
    key: tuple[str, int]
    first_number: int
    is_cell: bool = False
    index: int = -1
    loops: dict[int, LoopPlace] = field(default_factory=dict)
    calls: dict[Span, CallPlace] = field(default_factory=dict)
    binders: dict[int, frozenset[str]] = field(default_factory=dict)
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    has_places: bool = False

    def binds_again(self, name: str, number: int) -> bool:
        """Return whether a statement that binds a name can be executed again on the way to a place."""
        return any(
            name in names and binder < number and self.blocks[binder][0] <= number <= self.blocks[binder][1]
            for binder, names in self.binders.items()
        )


class Header:
    """Find the calls in the expressions of one statement, and in which of them a run can resume.

    Parameters
    ----------
    shared : set of str
        Names that functions declare ``global`` or ``nonlocal``.
    """

    def __init__(self, shared: frozenset[str]) -> None:
        self._shared = shared
        self.found: list[tuple[ast.Call, str | None]] = []

    def look(self, node: ast.AST, why: str | None) -> None:
        """Visit an expression; `why` says why a run cannot resume in it, ``None`` if it can."""
        if isinstance(node, ast.Call):
            self._call(node, why)
        elif type(node) in _COMPREHENSIONS:
            self._all(node, why or f"inside {_COMPREHENSIONS[type(node)]}")
        elif isinstance(node, ast.BoolOp):
            self.look(node.values[0], why)
            for value in node.values[1:]:
                self._all(value, why or "after a condition of its line")
        elif isinstance(node, ast.IfExp):
            self.look(node.test, why)
            self._all(node.body, why or "after a condition of its line")
            self._all(node.orelse, why or "after a condition of its line")
        elif isinstance(node, ast.Compare):
            self.look(node.left, why)
            self.look(node.comparators[0], why or self._unlike(node.left))
            for other in node.comparators[1:]:
                self._all(other, why or "after a condition of its line")
        elif isinstance(node, ast.JoinedStr) and sys.version_info < (3, 12):
            self._all(node, why or "inside an f-string")  # Python 3.11 reports no position inside an f-string
        elif isinstance(node, ast.Await | ast.Yield | ast.YieldFrom):
            self._all(node, why or "in a coroutine or generator")
        elif isinstance(node, ast.Dict | ast.DictComp):
            self._all(node, why or "inside a dict that is being made")
        else:
            for child in parts_of(node):
                self.look(child, why)
                why = why or self._unlike(child)

    def _call(self, call: ast.Call, why: str | None) -> None:
        function = call.func
        inside = why
        if isinstance(function, ast.Attribute):
            self.look(function.value, why)
            own = why or (None if has_calls(function.value) else self._chain(function.value))
            inside = why or self._chain(function.value)
        elif isinstance(function, ast.Name):
            own = why
            inside = why or self._unlike(function)
        else:
            self.look(function, why)
            own = why or ("called by the result of a call" if has_calls(function) else None)
            inside = why or "called by the result of an expression"
        for part in (*call.args, *call.keywords):
            value = part.value if isinstance(part, ast.keyword | ast.Starred) else part
            self.look(value, inside)
            inside = inside or self._unlike(value)
        self.found.append((call, own))

    def _chain(self, node: ast.expr) -> str | None:
        while isinstance(node, ast.Attribute):
            node = node.value
        return self._unlike(node)

    def _unlike(self, node: ast.AST) -> str | None:
        """Return why a value may differ when it is read again after the call, ``None`` if it cannot."""
        if isinstance(node, ast.Constant | ast.operator | ast.cmpop | ast.boolop | ast.unaryop | ast.expr_context):
            return None
        if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store) or node.id not in self._shared):
            return None
        return "after other values of its line were read"

    def _all(self, node: ast.AST, why: str) -> None:
        for child in ast.walk(node):
            if isinstance(child, ast.Call):
                self.found.append((child, why))


def may_lead_to_loop(call: ast.Call) -> bool:
    """Return whether a call may be one of the user's functions."""
    return not (isinstance(call.func, ast.Name) and call.func.id in _BUILTINS)


def has_calls(node: ast.AST) -> bool:
    """Return whether an expression contains calls."""
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def is_read_at_once(node: ast.AST) -> bool:
    """Return whether evaluating an expression again, with other values, can neither fail nor have effects."""
    return isinstance(node, ast.Name | ast.Constant)


def may_draw(node: ast.AST) -> bool:
    """Return whether evaluating an expression may draw random numbers."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            name = name_of(part)
            if name not in _DRAW_NOTHING and name not in _BUILTINS:
                return True
    return False
