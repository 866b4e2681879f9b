"""The text of a cell, and of the functions that travel with it, rewritten so that a run can jump to a place in it.

While a run is live the rewritten text does what the original does: a statement costs a comparison more, a loop's
iteration a call more. While it jumps, the number in ``__dtrain__.at`` says where to: what lies before is skipped, and the
statements and loops around the place are entered without being evaluated, because the values that they made are in the
snapshot. Lines and columns stay, so errors are reported as they were. Only loops that can be resumed are touched: not
those in generators, coroutines, comprehensions, class bodies, handlers, ``finally`` and ``match``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Set

from .ast_nodes import Numbers, ask, at_compare, placed_at, runtime
from .bindings import FUNCTIONS, assigned_in, bound_by, is_generator, shared_names, spans_of, targets_of
from .resume_points import SIMPLE, CallPlace, Header, LoopPlace, Unit, has_calls, is_read_at_once, may_draw, may_lead_to_loop, name_of

# Who calls the first ones needs what they make; a model's `forward` is called by PyTorch.
_NOT_RESUMED = frozenset({"__init__", "__new__", "__init_subclass__", "__set_name__", "forward"})


class Rewriting:
    """One text, rewritten.

    Parameters
    ----------
    tree : ast.Module
        It is left as it is.
    filename : str
    first_number : int
        The numbers of places begin here; a run gives each text numbers of its own.
    is_cell : bool
        Whether the text itself is run, and not its functions alone.
    shared : set of str
        Names that functions of other texts assign with ``global``.
    skip : set of str
        Functions of these names are left as they are.

    Attributes
    ----------
    tree : ast.Module
    units : list of Unit
        The cell and the functions that have places.
    end : int
        The first number that is not used.
    """

    def __init__(
        self,
        tree: ast.Module,
        filename: str,
        *,
        first_number: int = 0,
        is_cell: bool = False,
        shared: frozenset[str] = frozenset(),
        skip: Set[str] = frozenset(),
    ) -> None:
        self.filename = filename
        self.tree = copy.deepcopy(tree)
        self.shared = shared | shared_names(tree)
        self.numbers = Numbers(self.tree, first_number)
        self.first_number = first_number
        self.units: list[Unit] = []
        functions = [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS) and not is_generator(node)]
        if is_cell:
            self._unit("<module>", 1, self.tree, is_cell=True)
        for node in functions:
            if node.name not in _NOT_RESUMED and node.name not in skip:
                self._unit(node.name, min([node.lineno, *(part.lineno for part in node.decorator_list)]), node, is_cell=False)

        self.end = self.numbers.next + len(self.units)

    def _unit(self, name: str, line: int, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, *, is_cell: bool) -> None:
        unit = Unit(self.filename, (name, line), self.first_number, is_cell=is_cell)
        unit.index = self.numbers.next + len(self.units)  # a number of its own
        _Body(unit, self.numbers, self.shared).rewrite(node)
        if unit.has_places or is_cell:
            self.units.append(unit)


class _Body:
    """Rewrites the statements of one function, or of a cell; functions inside it are another's."""

    def __init__(self, unit: Unit, numbers: Numbers, shared: frozenset[str]) -> None:
        self.unit, self.numbers, self.shared = unit, numbers, shared
        self._holds: dict[int, bool] = {}  # whether there is a place in a statement
        self._candidates: dict[int, ast.Call] = {}  # calls that a run may be resumed in
        self._of_others: frozenset[str] = frozenset()  # names that are another's variables

    def rewrite(self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if not self.unit.is_cell:
            self._of_others = shared_names(*_own_parts(node))
        self._look(node.body, (), None)
        self.unit.has_places = any(self._holds.get(id(statement)) for statement in node.body)
        if not self.unit.has_places:
            return
        start = 0
        while start < len(node.body) and _comes_first(node.body[start], start):
            start += 1
        body = self._block(node.body[start:], (self.numbers.first(node.body[0]), self.numbers.end_of(node.body)))
        if not self.unit.is_cell:
            body.insert(0, placed_at(node, ast.If(at_compare(ast.GtE, 0), [ast.Expr(ask("enter_function", self.unit.index))], [])))
        node.body[start:] = body

    # -- what places there are ---------------------------------------------------------------------------------------

    def _look(self, body: list[ast.stmt], loops: tuple[int, ...], why: str | None) -> bool:
        """Note the places in a block inside these loops; return whether there are any."""
        found = [self._look_at(statement, loops, why) for statement in body]  # all of them
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

    # -- rewriting ---------------------------------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], around: tuple[int, int]) -> list[ast.stmt]:
        """Return a block's statements rewritten. `around` is the interval in which the block is the one being entered."""
        holding = [index for index, statement in enumerate(body) if self._holds.get(id(statement))]
        if not holding:
            return body
        result: list[ast.stmt] = []
        skipped: list[ast.stmt] = []
        for index, statement in enumerate(body):
            self._note_binder(statement, around)
            if isinstance(statement, ast.Global | ast.Nonlocal) or index > holding[-1]:
                result.append(statement)
            elif not self._holds.get(id(statement)):
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
        """Return `body` under a guard, and those of the statements that bind names once more, to be replayed."""
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
                manager = node.items[0].context_expr
                pause = ast.BoolOp(ast.And(), [at_compare(ast.GtE, 0), ask("pause", first)])
                node.items[0].context_expr = placed_at(manager, ast.BoolOp(ast.Or(), [pause, manager]), whole=True)
                unpause = ast.If(ast.Compare(runtime("paused"), [ast.Eq()], [ast.Constant(first)]), [ast.Expr(ask("unpause"))], [])
                node.body = [placed_at(node.body[0], unpause), *self._block(node.body, (self.numbers.end_of_header(node) + 1, last))]
            case ast.Try():
                body_end = self.numbers.end_of(node.body)
                node.body = self._block(node.body, (self.numbers.first(node.body[0]), body_end))
                if any(self._holds.get(id(statement)) for statement in node.orelse):
                    node.body = [placed_at(node.body[0], ast.If(at_compare(ast.LtE, body_end), node.body, []))]  # the way to the `else`
                if node.orelse:
                    node.orelse = self._block(node.orelse, (self.numbers.first(node.orelse[0]), self.numbers.end_of(node.orelse)))
            case _:
                assert isinstance(node, SIMPLE)
                if node.value is not None:
                    self._calls_in(node.value)
        return [node]

    def _calls_in(self, node: ast.AST) -> None:
        """Let calls that a run may be resumed in be made again without evaluating what is given to them."""
        for part in list(ast.walk(node)):
            if id(part) in self._candidates:
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


def _own_parts(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a function, those of functions inside it left out."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield node
            yield from _own_parts(node)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _comes_first(statement: ast.stmt, index: int) -> bool:
    """Return whether a statement has to stay at the start of its text: its docstring, what it imports from the future."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
