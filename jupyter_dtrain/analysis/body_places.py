"""Find the places in one function or cell at which a run can resume: loops, and calls that may lead to a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .ast_nodes import Numbers, name_of
from .bindings import FUNCTIONS, assigned_in, shared_names, spans_of, targets_of
from .resume_points import CallPlace, Header, LoopPlace, Unit, may_draw, may_lead_to_loop


class BodyPlaces:
    """Record the places of a unit's statements; functions inside are units of their own.

    Parameters
    ----------
    unit : Unit
        Its loops and calls are filled in.
    numbers : Numbers
    shared : frozenset of str
        Names that functions declare ``global``.
    """

    def __init__(self, unit: Unit, numbers: Numbers, shared: frozenset[str]) -> None:
        self.unit, self.numbers, self.shared = unit, numbers, shared
        self._holds: dict[int, bool] = {}  # whether a statement contains a place, by id
        self._candidates: dict[int, ast.Call] = {}  # calls in which a run can resume
        self._of_others: frozenset[str] = frozenset()  # names that functions inside share with this one

    def note(self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Record the places among the statements of `node`."""
        if not self.unit.is_cell:
            self._of_others = shared_names(*_own_parts(node))
        self._look(node.body, (), None)

    def holds(self, statement: ast.stmt) -> bool:
        """Return whether a statement contains a place to which a run can jump."""
        return self._holds.get(id(statement), False)

    def is_candidate(self, node: ast.AST) -> bool:
        """Return whether a node is a call in which a run can resume."""
        return id(node) in self._candidates

    def _look(self, body: list[ast.stmt], loops: tuple[int, ...], why: str | None) -> bool:
        """Record the places of a block inside `loops`; return whether there are any."""
        found = [self._look_at(statement, loops, why) for statement in body]  # a list, so that every statement is visited
        return any(found)

    def _look_at(self, node: ast.stmt, loops: tuple[int, ...], why: str | None) -> bool:
        holds = False
        match node:
            case ast.For() | ast.While():
                inside = (*loops, self.numbers.first(node))
                if isinstance(node, ast.While):
                    self._header([node.test], inside, why)
                else:
                    self._header([node.iter], loops, why, enterable=False)
                if why is None:
                    self.unit.loops[inside[-1]] = self._loop(node, inside)
                    holds = True
                self._look(node.body, inside, why)
                self._look(node.orelse, loops, why)
            case ast.If():
                holds = self._header([node.test], loops, why)
                holds |= self._look(node.body, loops, why)
                holds |= self._look(node.orelse, loops, why)
            case ast.With():
                self._header([item.context_expr for item in node.items], loops, why, enterable=False)
                holds = self._look(node.body, loops, why)
            case ast.Try():
                holds = self._look(node.body, loops, why)
                for handler in node.handlers:
                    self._look(handler.body, loops, why or "while an exception is handled")
                holds |= self._look(node.orelse, loops, why)
                self._look(node.finalbody, loops, why or "inside a finally block")
            case ast.Match():
                for case in node.cases:
                    self._look(case.body, loops, why or "inside a match statement")
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.Return():
                holds = self._header([] if node.value is None else [node.value], loops, why)
                if isinstance(node, ast.Assign):
                    self._header(node.targets, loops, why, enterable=False)
            case ast.AugAssign():
                plain = isinstance(node.target, ast.Name) and node.target.id not in self.shared
                holds = self._header([node.value], loops, why or (None if plain else "after other values of its line were read"))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                self._header([part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)], loops, why, enterable=False)
        self._holds[id(node)] = holds
        return holds

    def _header(self, parts: list[ast.expr], loops: tuple[int, ...], why: str | None, *, enterable: bool = True) -> bool:
        header = Header(self.shared)
        for part in parts:
            header.look(part, why or (None if enterable else "in the header of a statement"))
        holds = False
        for call, reason in header.found:
            if not may_lead_to_loop(call):
                continue
            place = CallPlace(self.numbers.first(call), call.lineno, loops, reason, name_of(call))
            for span in spans_of(call):
                self.unit.calls[span] = place
            if reason is None:
                self._candidates[id(call)] = call
                holds = True
        return holds

    def _loop(self, node: ast.For | ast.While, loops: tuple[int, ...]) -> LoopPlace:
        number, end_of_body = loops[-1], self.numbers.end_of(node.body)
        end_of_test = self.numbers.end_of_header(node)
        if isinstance(node, ast.While):
            return LoopPlace(number, node.lineno, end_of_test, end_of_body, loops)
        targets, plain = targets_of(node.target)
        plain = plain and not self._of_others & assigned_in(node.target)
        sources = tuple(dict.fromkeys(part.id for part in ast.walk(node.iter) if isinstance(part, ast.Name)))
        rebound = (assigned_in(node.body) | assigned_in(node.target)).intersection(sources)
        is_name = isinstance(node.iter, ast.Name | ast.Attribute | ast.Subscript)
        return LoopPlace(
            number, node.lineno, end_of_test, end_of_body, loops, targets, plain, rebound, sources, may_draw(node.iter), is_name
        )


def _own_parts(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a function, without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield node
            yield from _own_parts(node)
