"""Rewrite the statements of one function or cell so that a run can jump to a place among them.

Blocks with a place get guards that decide what a jump enters, skips or executes again (see :mod:`.rewrite`).
"""

from __future__ import annotations

import ast

from .ast_nodes import Numbers, ask, at_compare, placed_at, runtime
from .bindings import bound_by
from .body_places import BodyPlaces
from .resume_points import SIMPLE, Unit, has_calls, is_read_at_once


class RewrittenBody:
    """Rewrite the statements of one function or cell; functions inside are units of their own."""

    def __init__(self, unit: Unit, numbers: Numbers, shared: frozenset[str]) -> None:
        self.unit, self.numbers = unit, numbers
        self.places = BodyPlaces(unit, numbers, shared)

    def rewrite(self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Rewrite the statements of `node` in place, if they contain a place."""
        self.places.note(node)
        self.unit.has_places = any(map(self.places.holds, node.body))
        if not self.unit.has_places:
            return
        start = 0
        while start < len(node.body) and _comes_first(node.body[start], start):
            start += 1
        body = self._block(node.body[start:], (self.numbers.first(node.body[0]), self.numbers.end_of(node.body)))
        if not self.unit.is_cell:
            body.insert(0, placed_at(node, ast.If(at_compare(ast.GtE, 0), [ast.Expr(ask("enter_function", self.unit.index))], [])))
        node.body[start:] = body

    def _block(self, body: list[ast.stmt], around: tuple[int, int]) -> list[ast.stmt]:
        """Return a block's rewritten statements. `around` is the interval of jump targets for which the block is entered."""
        holding = [index for index, statement in enumerate(body) if self.places.holds(statement)]
        if not holding:
            return body
        result: list[ast.stmt] = []
        skipped: list[ast.stmt] = []
        for index, statement in enumerate(body):
            self._note_binder(statement, around)
            if isinstance(statement, ast.Global | ast.Nonlocal) or index > holding[-1]:
                result.append(statement)
            elif not self.places.holds(statement):
                skipped.append(statement)
                if index + 1 in holding or isinstance(body[index + 1], ast.Global | ast.Nonlocal):
                    result.append(self._skippable(skipped, skipped, ast.Lt, self.numbers.first(skipped[0])))
                    skipped = []
            else:
                rewritten = self._statement(statement)
                if index < holding[-1]:
                    result.append(self._skippable(rewritten, [statement], ast.LtE, self.numbers.last(statement)))
                else:
                    result += rewritten
        return result

    def _note_binder(self, statement: ast.stmt, around: tuple[int, int]) -> None:
        names = bound_by(statement)
        if names:
            number = self.numbers.first(statement)
            self.unit.binders[number] = names
            self.unit.blocks[number] = around

    def _skippable(self, body: list[ast.stmt], originals: list[ast.stmt], compare: type[ast.cmpop], number: int) -> ast.stmt:
        """Return `body` under a guard, with an alternative that executes statements again which bind names."""
        replays: list[ast.stmt] = []
        for statement in originals:
            if bound_by(statement):
                test = ask("replays", self.numbers.first(statement))
                again = [statement] if body is originals else body
                replays.append(placed_at(statement, ast.If(test, [*again, placed_at(statement, ast.Expr(ask("replayed")))], [])))
        return placed_at(originals[0], ast.If(at_compare(compare, number), body, replays))

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        first, last = self.numbers.first(node), self.numbers.last(node)
        match node:
            case ast.For():
                within = (self.numbers.end_of_header(node) + 1, self.numbers.end_of(node.body))
                iterable = ast.BoolOp(ast.Or(), [ask("saved", first), node.iter])
                node.iter = placed_at(node.iter, ask("loop", first, iterable), whole=True)
                node.body = self._block(node.body, within)
                node.orelse = self._block(node.orelse, (within[1] + 1, last))
            case ast.While():
                end = self.numbers.end_of_header(node)
                self._calls_in(node.test)
                within = (end + 1, self.numbers.end_of(node.body))
                live = ast.BoolOp(ast.And(), [at_compare(ast.LtE, end), node.test])
                node.test = placed_at(node.test, ast.BoolOp(ast.Or(), [ask("turn", first), live]), whole=True)
                node.body = self._block(node.body, within)
                node.orelse = self._block(node.orelse, (within[1] + 1, last))
                return [placed_at(node, ast.Expr(ask("start", first))), node]
            case ast.If():
                end = self.numbers.end_of_header(node)
                self._calls_in(node.test)
                within = (end + 1, self.numbers.end_of(node.body))
                node.test = placed_at(node.test, ast.IfExp(at_compare(ast.LtE, end), node.test, at_compare(ast.LtE, within[1])), whole=True)
                node.body = self._block(node.body, within)
                node.orelse = self._block(node.orelse, (within[1] + 1, last))
            case ast.With():
                for index, item in enumerate(node.items):
                    on_the_way = ast.Compare(runtime("paused"), [ast.Eq()], [ast.Constant(first)]) if index else at_compare(ast.GtE, 0)
                    again = ast.BoolOp(ast.And(), [on_the_way, ask("again", first, index)])
                    manager = ask("manager", first, index, ast.BoolOp(ast.Or(), [again, item.context_expr]))
                    item.context_expr = placed_at(item.context_expr, manager, whole=True)
                unpause = ast.If(ast.Compare(runtime("paused"), [ast.Eq()], [ast.Constant(first)]), [ast.Expr(ask("unpause"))], [])
                node.body = [placed_at(node.body[0], unpause), *self._block(node.body, (self.numbers.end_of_header(node) + 1, last))]
            case ast.Try():
                body_end = self.numbers.end_of(node.body)
                node.body = self._block(node.body, (self.numbers.first(node.body[0]), body_end))
                if any(map(self.places.holds, node.orelse)):
                    node.body = [placed_at(node.body[0], ast.If(at_compare(ast.LtE, body_end), node.body, []))]  # on a jump to the `else`
                if node.orelse:
                    node.orelse = self._block(node.orelse, (self.numbers.first(node.orelse[0]), self.numbers.end_of(node.orelse)))
            case _:
                assert isinstance(node, SIMPLE)
                if node.value is not None:
                    self._calls_in(node.value)
        return [node]

    def _calls_in(self, node: ast.AST) -> None:
        """Let calls in which a run can resume be made again without evaluating their arguments."""
        for part in list(ast.walk(node)):
            if self.places.is_candidate(part):
                assert isinstance(part, ast.Call)
                self._make_again(part)

    def _make_again(self, call: ast.Call) -> None:
        number = self.numbers.first(call)

        def only_live(value: ast.expr, otherwise: ast.expr) -> ast.expr:
            return placed_at(value, ast.IfExp(at_compare(ast.Lt, number), value, otherwise), whole=True)

        for index, part in enumerate(call.args):
            if isinstance(part, ast.Starred) and not is_read_at_once(part.value):
                part.value = only_live(part.value, ast.Tuple([], ast.Load()))
            elif not isinstance(part, ast.Starred) and not is_read_at_once(part):
                call.args[index] = only_live(part, ast.Constant(None))
        for keyword in call.keywords:
            if not is_read_at_once(keyword.value):
                keyword.value = only_live(keyword.value, ast.Constant(None) if keyword.arg else ast.Dict([], []))
        function = call.func
        again: ast.expr = function
        if isinstance(function, ast.Attribute) and has_calls(function.value) and not _is_super(function.value):
            again = ask("callee", function.attr)
        if any(isinstance(part, ast.Starred) for part in call.args) or any(keyword.arg is None for keyword in call.keywords):
            again = ask("filled", again)
        if again is not function:
            call.func = only_live(function, again)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _comes_first(statement: ast.stmt, index: int) -> bool:
    """Return whether a statement must stay at the start of its text: a docstring or an import from ``__future__``."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
