"""From a cell's text to the names that it needs from the notebook.

The analysis follows the order of the statements: a name that the cell always assigns before it reads it is not
needed, so what an earlier run left behind under that name (a loss with its whole graph, an iterator that cannot be
sent) stays at home. Where the order cannot be known (branches, function bodies, after a loop) a name counts as
*maybe* needed: it is sent when it can be, and left out when it cannot.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType

_GLOBAL_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})


@dataclass(frozen=True)
class CellNames:
    """Names that a cell reads from the notebook, each with the line where it is first read.

    Attributes
    ----------
    needed : dict of str to int
        Read before any assignment in the cell.
    maybe : dict of str to int
        Read where an assignment in the cell may or may not have come first.
    """

    needed: dict[str, int]
    maybe: dict[str, int]

    def __iter__(self) -> Iterator[str]:
        yield from self.needed
        yield from self.maybe


def find_names(tree: ast.Module) -> CellNames:
    """Return the names that the statements of `tree` read before they assign them."""
    flow = _Flow()
    flow.statements(tree.body, assigned=set())
    maybe = {name: line for name, line in flow.maybe.items() if name not in flow.needed}
    return CellNames(needed=flow.needed, maybe=maybe)


@dataclass
class _Flow:
    """Walks statements in order. `assigned` is the set of names that are certainly bound at that point."""

    needed: dict[str, int] = field(default_factory=dict)
    maybe: dict[str, int] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)  # by any statement walked so far, on any path

    def statements(self, body: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        for statement in body:
            assigned = self.statement(statement, assigned)
        return assigned

    def statement(self, node: ast.stmt, assigned: set[str]) -> set[str]:
        match node:
            case ast.If():
                self.read(node.test, assigned)
                then = self.statements(node.body, set(assigned))
                other = self.statements(node.orelse, set(assigned))
                return then & other
            case ast.For() | ast.AsyncFor():
                self.read(node.iter, assigned)
                self.statements(node.body, assigned | self.store(node.target))
                self.statements(node.orelse, set(assigned))
                return assigned
            case ast.While():
                self.read(node.test, assigned)
                self.statements(node.body, set(assigned))
                self.statements(node.orelse, set(assigned))
                return assigned
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.read(item.context_expr, assigned)
                    if item.optional_vars is not None:
                        assigned = assigned | self.store(item.optional_vars)
                return self.statements(node.body, assigned)
            case ast.Try() | ast.TryStar():
                done = self.statements(node.body, set(assigned))
                done = self.statements(node.orelse, done)
                for handler in node.handlers:
                    if handler.type is not None:
                        self.read(handler.type, assigned)
                    named = {handler.name} if handler.name else set()
                    self.statements(handler.body, assigned | named)
                after = done if not node.handlers else assigned
                return self.statements(node.finalbody, set(after))
            case ast.Match():
                self.read(node.subject, assigned)
                for case in node.cases:
                    bound = {n.name for n in ast.walk(case.pattern) if isinstance(n, ast.MatchAs | ast.MatchStar) and n.name}
                    self._stored |= bound
                    self.statements(case.body, assigned | bound)
                return assigned
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                # The body runs when the function is called, so what it reads may be assigned by then.
                for name, line in _reads([node], inner=True):
                    if name != node.name and name not in assigned:
                        self.maybe.setdefault(name, line)
                for name, line in _reads([node], inner=False):
                    self.note(name, line, assigned)
                self._stored.add(node.name)
                return assigned | {node.name}
            case _:
                for name, line in _reads([node], inner=False):
                    self.note(name, line, assigned)
                for name, line in _reads([node], inner=True):
                    if name not in assigned:
                        self.maybe.setdefault(name, line)
                if isinstance(node, ast.Delete):
                    deleted = _stores(node)
                    for name in deleted - assigned:  # it has to be there
                        self.maybe.setdefault(name, node.lineno)
                    return assigned - deleted
                return assigned | self.store(node)

    def read(self, expression: ast.expr, assigned: set[str]) -> None:
        statement = ast.copy_location(ast.Expr(expression), expression)
        for inner in (False, True):
            for name, line in _reads([statement], inner=inner):
                self.note(name, line, assigned)

    def note(self, name: str, line: int, assigned: set[str]) -> None:
        if name in assigned:
            return
        (self.maybe if name in self._stored else self.needed).setdefault(name, line)

    def store(self, node: ast.AST) -> set[str]:
        names = _stores(node)
        self._stored |= names
        return names


def _stores(node: ast.AST) -> set[str]:
    """Return the names that `node` binds or deletes in the cell's own scope (not inside functions it defines)."""
    names: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(item.name)
            continue
        if isinstance(item, ast.Lambda):
            continue
        if isinstance(item, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            # Targets of a comprehension are its own; a walrus inside binds in the cell.
            names |= {n.target.id for n in ast.walk(item) if isinstance(n, ast.NamedExpr)}
            continue
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store | ast.Del):
            names.add(item.id)
        if isinstance(item, ast.alias):
            names.add((item.asname or item.name).split(".")[0])
        pending.extend(ast.iter_child_nodes(item))
    return names - {"*"}


def _reads(body: Sequence[ast.stmt], *, inner: bool) -> list[tuple[str, int]]:
    """Return (name, line) for each global read in `body`.

    The compiler knows the scoping rules best, so its output is read and not the tree: with `inner` the reads inside
    nested functions and lambdas, without it those that happen when the statements run (class bodies and
    comprehensions included).
    """
    module = ast.Module(body=list(body), type_ignores=[])
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(ast.fix_missing_locations(module), "<names>", "exec", flags=flags, dont_inherit=True)
    wanted = _later(code) if inner else _now(code)
    return [read for item in wanted for read in _global_reads(item)]


def _nested(code: CodeType) -> Iterable[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _runs_at_once(code: CodeType) -> bool:
    # A class body is not optimized (its locals are a namespace); comprehensions have reserved names.
    return code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>") or not code.co_flags & 0x1


def _now(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in _nested(code):
        if _runs_at_once(inner):
            yield from _now(inner)


def _later(code: CodeType) -> Iterator[CodeType]:
    for inner in _nested(code):
        if _runs_at_once(inner):
            yield from _later(inner)
        else:
            yield from _everything(inner)


def _everything(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in _nested(code):
        yield from _everything(inner)


def _global_reads(code: CodeType) -> Iterator[tuple[str, int]]:
    own: set[str] = set()  # names of a class body
    in_class = not code.co_flags & 0x1 and code.co_name != "<module>"
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        position = instruction.positions
        if position is not None and position.lineno is not None:
            line = position.lineno
        if in_class and instruction.opname == "STORE_NAME":
            own.add(instruction.argval)
        elif instruction.opname in _GLOBAL_READS and instruction.argval not in own:
            yield instruction.argval, line
