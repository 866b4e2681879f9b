"""From a cell's text to the names that it needs from the notebook.

The analysis follows the order of the statements: a name that the cell always assigns before it reads it is not
needed, so what an earlier run left behind under that name (a loss with its whole graph, an iterator that cannot be
sent) stays at home. Where the order cannot be known (branches, function bodies, after a loop) a name counts as
*maybe* needed: it is sent when it can be, and left out when it cannot.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType

from .code_objects import everything, nested
from .imports import imported_names

_GLOBAL_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
_GLOBAL_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_IMPLICIT = frozenset({"__name__", "__annotations__", "__conditional_annotations__"})
"""Read by class statements and annotations; every namespace has its own."""
_WORD = re.compile(r"[^\W\d]\w*")
_IN_COMMAND = re.compile(r"[{$]\s*([^\W\d]\w*)")
_IN_QUERY = re.compile(r"@([^\W\d]\w*)")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class CellNames:
    """Names that a cell reads from the notebook, each with the line where it is first read.

    Attributes
    ----------
    needed : dict of str to int
        Read before any assignment in the cell.
    maybe : dict of str to int
        Read where an assignment in the cell may or may not have come first.
    attributes, imports : set of str
        Attributes that the cell uses of anything, and modules that it may import.
    """

    needed: dict[str, int]
    maybe: dict[str, int]
    attributes: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        yield from self.needed
        yield from self.maybe


def find_names(tree: ast.Module) -> CellNames:
    """Return the names that the statements of `tree` read before they assign them. `tree` is one that compiles."""
    flow = _Flow()
    flow.statements(tree.body, assigned=set())
    in_magics = dict(reversed(list(_words_in_magics(tree))))
    in_texts = dict(reversed(list(_words_in_queries(tree)))) | in_magics | dict(_main_by_name(tree))
    maybe = {name: line for name, line in (in_texts | flow.maybe).items() if name not in flow.needed}
    attributes = frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return CellNames(needed=flow.needed, maybe=maybe, attributes=attributes | in_magics.keys(), imports=imported_names(tree))


def all_global_reads(code: CodeType) -> set[str]:
    """Return the global names that `code` reads, and those that the functions within it do."""
    return {name for inner in everything(code) for name, _, _ in _global_reads(inner)}


def _main_by_name(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return ``globals`` where the cell takes the notebook for a module (``sys.modules[__name__]``), which comes to the same."""
    for node in ast.walk(tree):
        match node:
            case ast.alias(name="__main__"):
                yield "globals", node.lineno
            case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Name("__name__") | ast.Constant("__main__")):
                yield "globals", node.lineno


def _words_in_queries(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return (word, line) for what may be a name in a query of a table: ``frame.query("loss < @best")``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="query" | "eval")):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for word in re.findall(_IN_QUERY, part.value):
                            yield word, node.lineno


def _words_in_magics(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return (word, line) for what may be a name in the text of a magic (``%time train(x)``) or a shell command (``!ls {folder}``)."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name("get_ipython")), attr=attr)):
                text = "\n".join(part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str))
                for word in re.findall(_IN_COMMAND if attr in ("system", "getoutput") else _WORD, text):
                    yield word, node.lineno


@dataclass
class _Flow:
    """Walks statements in order. `assigned` is the set of names that are certainly bound at that point."""

    needed: dict[str, int] = field(default_factory=dict)
    maybe: dict[str, int] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)  # by any statement walked so far, on any path
    _loop: set[str] = field(default_factory=set)  # by any statement of the loops around this one
    _earlier: set[str] = field(default_factory=set)  # of these, the names that an earlier pass may have stored
    _any_name: bool = False  # a star import may have stored it

    def statements(self, body: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        for statement in body:
            assigned = self.statement(statement, assigned)
        return assigned

    def branch(self, body: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        """Walk statements that may or may not run: in a loop, perhaps not in the first pass."""
        outer, self._earlier = self._earlier, self._loop
        try:
            return self.statements(body, assigned)
        finally:
            self._earlier = outer

    def statement(self, node: ast.stmt, assigned: set[str]) -> set[str]:
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
                return assigned if any(_suppresses(item.context_expr) for item in node.items) else after
            case ast.Try() | ast.TryStar():
                return self.tried(node, assigned)
            case ast.Match():
                return self.matched(node, assigned)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for name, line, certain in _reads(node, inner=False):
                    self.note(name, line, assigned, certain=certain)
                # Bodies of functions run when they are called, so what they read may be assigned by then.
                for name, line, _ in _reads(node, inner=True):
                    if name != node.name:
                        self.note(name, line, assigned, certain=False)
                return assigned | self.store(node)
            case ast.Break() | ast.Continue():
                return assigned
            case ast.Delete():
                assigned = self.read(node, assigned)
                return assigned - _stores(node)
            case ast.ImportFrom() if node.names[0].name == "*":
                self._any_name = True
                return assigned
            case _:
                return self.read(node, assigned)

    def tried(self, node: ast.Try | ast.TryStar, assigned: set[str]) -> set[str]:
        """Walk a ``try``, any statement of whose body may be its last."""
        done = self.statements(node.orelse, self.statements(node.body, assigned))
        for handler in node.handlers:
            before = assigned if handler.type is None else self.read(handler.type, assigned)
            named = {handler.name} if handler.name else set()
            self._stored |= named
            done &= self.branch(handler.body, before | named) - named  # the name is deleted at the end of its handler
        final = self.statements(node.finalbody, assigned)
        return done | (final - assigned)

    def matched(self, node: ast.Match, assigned: set[str]) -> set[str]:
        """Walk a ``match``; a pattern may bind names even where its case is not taken in the end."""
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
        outer, self._loop = self._loop, self._loop | _stores(node)
        try:
            yield
        finally:
            self._loop = outer

    def read(self, node: ast.expr | ast.stmt, assigned: set[str]) -> set[str]:
        """Note what an expression or a simple statement reads; return what is assigned after it."""
        for name, line, certain in _reads(node, inner=False):
            self.note(name, line, assigned, certain=certain)
        for name, line, _ in _reads(node, inner=True):
            self.note(name, line, assigned, certain=False)
        self._stored |= _stores(node)
        return assigned | _stores(node, certain=True)

    def bind(self, target: ast.expr, assigned: set[str]) -> set[str]:
        """Note what a target of ``for`` or ``with`` reads (the `d` of ``d[k]``); return what is assigned after it."""
        return self.read(ast.copy_location(ast.Assign(targets=[target], value=ast.Constant(None)), target), assigned)

    def note(self, name: str, line: int, assigned: set[str], *, certain: bool) -> None:
        if name in assigned or name in _IMPLICIT:
            return
        unknown = self._any_name or not certain or name in self._stored or name in self._earlier
        (self.maybe if unknown else self.needed).setdefault(name, line)

    def store(self, node: ast.AST) -> set[str]:
        names = _stores(node)
        self._stored |= names
        return names if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else {node.name}


def _suppresses(context: ast.expr) -> bool:
    """Return whether a ``with`` on `context` may end its body early: ``suppress(KeyError)``, ``pytest.raises(…)``."""
    called = context.func if isinstance(context, ast.Call) else context
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return any(word in name.lower() for word in ("suppress", "ignore", "raises"))


def _stores(node: ast.AST, *, certain: bool = False) -> set[str]:
    """Return the names that `node` may bind or delete in the cell's own scope, also in functions that say ``global``.

    With `certain` only those that it binds whichever way its expressions go.
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
            case _ if isinstance(item, _COMPREHENSIONS):
                # Targets of a comprehension are its own; a walrus inside binds in the cell.
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


def _reads(node: ast.expr | ast.stmt, *, inner: bool) -> list[tuple[str, int, bool]]:
    """Return (name, line, certain) for each global read in `node`; not certain are those after a store in `node` itself.

    The compiler knows the scoping rules best, so its output is read and not the tree: with `inner` the reads inside
    nested functions and lambdas, without it those that happen when the statement runs (class bodies and
    comprehensions included).
    """
    if isinstance(node, ast.Delete):  # the names have to be there, though nothing loads them
        node = ast.copy_location(ast.Expr(ast.Tuple([_as_load(target) for target in node.targets], ast.Load())), node)
    statement = node if isinstance(node, ast.stmt) else ast.copy_location(ast.Expr(node), node)
    module = ast.fix_missing_locations(ast.Module(body=[statement], type_ignores=[]))
    code = compile(module, "<names>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    wanted = _later(code) if inner else _now(code)
    return [read for item in wanted for read in _global_reads(item)]


def _as_load(target: ast.expr) -> ast.expr:
    """Return the target of a ``del`` as an expression that reads all that it needs."""
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
    # A class body is not optimized (its locals are a namespace); comprehensions have reserved names.
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


def _global_reads(code: CodeType) -> Iterator[tuple[str, int, bool]]:
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
