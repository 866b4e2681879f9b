"""Determine which names the statements of a cell read before they bind them, on any path."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType

from .bindings import stored_names, suppresses
from .code_objects import everything, nested

_GLOBAL_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
_GLOBAL_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_IMPLICIT = frozenset({"__name__", "__annotations__", "__conditional_annotations__"})
"""Read by class statements and annotations; every namespace has its own."""


@dataclass
class NameFlow:
    """Walk statements in order. `assigned` is the set of names that are certainly bound at that point."""

    needed: dict[str, int] = field(default_factory=dict)
    maybe: dict[str, int] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)  # bound by any statement walked so far, on any path
    _loop: set[str] = field(default_factory=set)  # bound by any statement of the enclosing loops
    _earlier: set[str] = field(default_factory=set)  # of `_loop`, the names that an earlier iteration may have bound
    _any_name: bool = False  # a star import may have bound any name

    def statements(self, body: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        """Walk consecutive statements; return the names that are certainly bound after them."""
        for statement in body:
            assigned = self.statement(statement, assigned)
        return assigned

    def branch(self, body: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        """Walk statements that may not run; in a loop, they may run only in a later iteration."""
        outer, self._earlier = self._earlier, self._loop
        try:
            return self.statements(body, assigned)
        finally:
            self._earlier = outer

    def statement(self, node: ast.stmt, assigned: set[str]) -> set[str]:
        """Walk one statement; return the names that are certainly bound after it."""
        match node:
            case ast.If():
                assigned = self.read(node.test, assigned)
                return self.branch(node.body, assigned) & self.branch(node.orelse, assigned)
            case ast.For() | ast.AsyncFor():
                assigned = self.read(node.iter, assigned)
                with self._in_loop(node):
                    self.statements(node.body, self.bind(node.target, assigned))
                self.branch(node.orelse, assigned)
                return assigned
            case ast.While():
                with self._in_loop(node):
                    assigned = self.read(node.test, assigned)
                    self.statements(node.body, assigned)
                self.branch(node.orelse, assigned)
                return assigned
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    assigned = self.read(item.context_expr, assigned)
                    if item.optional_vars is not None:
                        assigned = self.bind(item.optional_vars, assigned)
                after = self.statements(node.body, assigned)
                return assigned if any(suppresses(item.context_expr) for item in node.items) else after
            case ast.Try() | ast.TryStar():
                return self.tried(node, assigned)
            case ast.Match():
                return self.matched(node, assigned)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for name, line, certain in _reads(node, inner=False):
                    self.note(name, line, assigned, certain=certain)
                # Function bodies run when they are called, so the names that they read may be bound by then.
                for name, line, _ in _reads(node, inner=True):
                    if name != node.name:
                        self.note(name, line, assigned, certain=False)
                return assigned | self.store(node)
            case ast.Break() | ast.Continue():
                return assigned
            case ast.Delete():
                assigned = self.read(node, assigned)
                return assigned - stored_names(node)
            case ast.ImportFrom() if node.names[0].name == "*":
                self._any_name = True
                return assigned
            case _:
                return self.read(node, assigned)

    def tried(self, node: ast.Try | ast.TryStar, assigned: set[str]) -> set[str]:
        """Walk a ``try``, whose body may end at any of its statements."""
        done = self.statements(node.orelse, self.statements(node.body, assigned))
        for handler in node.handlers:
            before = assigned if handler.type is None else self.read(handler.type, assigned)
            named = {handler.name} if handler.name else set()
            self._stored |= named
            done &= self.branch(handler.body, before | named) - named  # the name is deleted at the end of its handler
        final = self.statements(node.finalbody, assigned)
        return done | (final - assigned)

    def matched(self, node: ast.Match, assigned: set[str]) -> set[str]:
        """Walk a ``match``; a pattern may bind names even if its case does not match in the end."""
        assigned = self.read(node.subject, assigned)
        ends = []
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.expr) and not isinstance(part, ast.Constant):
                    self.read(part, assigned)
            inside = assigned | self.store(case.pattern)
            if case.guard is not None:
                inside = self.read(case.guard, inside)
            ends.append(self.branch(case.body, inside))
        last = node.cases[-1]
        takes_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
        return set.intersection(*ends) if takes_all else assigned

    @contextmanager
    def _in_loop(self, node: ast.stmt) -> Iterator[None]:
        outer, self._loop = self._loop, self._loop | stored_names(node)
        try:
            yield
        finally:
            self._loop = outer

    def read(self, node: ast.expr | ast.stmt, assigned: set[str]) -> set[str]:
        """Record the names that an expression or a simple statement reads; return the names that are bound after it."""
        for name, line, certain in _reads(node, inner=False):
            self.note(name, line, assigned, certain=certain)
        for name, line, _ in _reads(node, inner=True):
            self.note(name, line, assigned, certain=False)
        self._stored |= stored_names(node)
        return assigned | stored_names(node, certain=True)

    def bind(self, target: ast.expr, assigned: set[str]) -> set[str]:
        """Record the names that a target of ``for`` or ``with`` reads (the `d` of ``d[k]``); return the names that are bound after it."""
        return self.read(ast.copy_location(ast.Assign(targets=[target], value=ast.Constant(None)), target), assigned)

    def note(self, name: str, line: int, assigned: set[str], *, certain: bool) -> None:
        """Record that a name is read where `assigned` are bound; `certain`: when this statement runs, not in a later call."""
        if name in assigned or name in _IMPLICIT:
            return
        unknown = self._any_name or not certain or name in self._stored or name in self._earlier
        (self.maybe if unknown else self.needed).setdefault(name, line)

    def store(self, node: ast.AST) -> set[str]:
        """Record the names that a node binds, and return them."""
        names = stored_names(node)
        self._stored |= names
        return names if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else {node.name}


def _reads(node: ast.expr | ast.stmt, *, inner: bool) -> list[tuple[str, int, bool]]:
    """Return (name, line, certain) for each global read in `node`; reads after a store in `node` itself are not certain.

    It inspects the compiled code, as the compiler knows the scoping rules best: with `inner` the reads inside nested functions and lambdas,
    otherwise those when the statement runs, including class bodies and comprehensions.
    """
    if isinstance(node, ast.Delete):  # the names must exist, though no instruction loads them
        node = ast.copy_location(ast.Expr(ast.Tuple([_as_load(target) for target in node.targets], ast.Load())), node)
    statement = node if isinstance(node, ast.stmt) else ast.copy_location(ast.Expr(node), node)
    module = ast.fix_missing_locations(ast.Module(body=[statement], type_ignores=[]))
    code = compile(module, "<names>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    wanted = _later(code) if inner else _now(code)
    return [read for item in wanted for read in global_reads(item)]


def _as_load(target: ast.expr) -> ast.expr:
    """Return the target of a ``del`` as an expression that reads all that it requires."""
    match target:
        case ast.Name():
            return ast.copy_location(ast.Name(target.id, ast.Load()), target)
        case ast.Attribute():
            return target.value
        case ast.Subscript():
            return ast.copy_location(ast.Tuple([target.value, target.slice], ast.Load()), target)
        case ast.Tuple() | ast.List():
            return ast.copy_location(ast.Tuple([_as_load(part) for part in target.elts], ast.Load()), target)
    return target


def _runs_at_once(code: CodeType) -> bool:
    # The code of a class body lacks the flag CO_OPTIMIZED; comprehensions have reserved names.
    return code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>") or not code.co_flags & 0x1


def _now(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in nested(code):
        if _runs_at_once(inner):
            yield from _now(inner)


def _later(code: CodeType) -> Iterator[CodeType]:
    for inner in nested(code):
        if _runs_at_once(inner):
            yield from _later(inner)
        else:
            yield from everything(inner)


def global_reads(code: CodeType) -> Iterator[tuple[str, int, bool]]:
    """Yield the global names that `code` reads: name, line, and whether `code` has not bound it before."""
    own: set[str] = set()
    in_class = not code.co_flags & 0x1 and code.co_name != "<module>"
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        position = instruction.positions
        if position is not None and position.lineno is not None:
            line = position.lineno
        if instruction.opname in _GLOBAL_STORES:
            own.add(instruction.argval)
        elif instruction.opname in _GLOBAL_READS and not (in_class and instruction.argval in own):
            yield instruction.argval, line, instruction.argval not in own
