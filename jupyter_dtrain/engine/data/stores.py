"""What a function writes to that is there beside it: an escape analysis of its text.

A sample that is fetched is made of new objects as a rule (``image = Image.open(path)``, ``target = {}``), and writing to these is nobody's
business. What came from elsewhere (an attribute, a global, a closure) and is written to stays changed. So each expression has a kind:
new to its depth, a new container of old things, what the caller gave, or what was there before. Where the text says too little it is the
last: who asks then takes the careful way, which is right and slower.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from enum import IntEnum
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ...analysis.code_objects import everything, original_code
from .method_names import ANYTHING, CHOOSES, FILES, MAKES, MAKES_OUTSIDE, MUTATES_ARGUMENTS, MUTATING, PLAIN_ATTRIBUTES, SHOWS


class Kind(IntEnum):
    """Where a value comes from; the larger, the less may be written to it."""

    NEW = 0
    NEW_OUTSIDE = 1
    """A new container, of what may have been there before."""
    GIVEN = 2
    """An argument, or a part of one."""
    SHARED = 3


@dataclass
class Writes:
    """What a function does to what it has not made itself.

    Attributes
    ----------
    shared : bool
        It writes to something that was there before, or prints, or writes a file.
    given : bool
        It writes to its arguments.
    calls : dict of str to Kind
        By the name that is called: the most shared argument that it is given.
    """

    shared: bool = False
    given: bool = False
    calls: dict[str, Kind] = field(default_factory=dict)


_STORING = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR", "DELETE_GLOBAL")


def writes_of(function: FunctionType, *, first: Kind, others: Kind, own: Set[str] = frozenset()) -> Writes:
    """Return what a call of `function` writes to.

    Parameters
    ----------
    function : FunctionType
    first, others : Kind
        Of its first argument, and of the others.
    own : set of str
        Names of the user's own functions: what these return may be anything.
    """
    code = original_code(function.__code__) or function.__code__
    of_code = _known.setdefault(code, {})
    asked = (first, others, own)
    if asked not in of_code:
        of_code[asked] = _writes_of(code, function, first, others, own)
    return of_code[asked]


_known: WeakKeyDictionary[CodeType, dict[Any, Writes]] = WeakKeyDictionary()


def _writes_of(code: CodeType, function: FunctionType, first: Kind, others: Kind, own: Set[str]) -> Writes:
    tree = _tree_of(code)
    if tree is None:
        may = any(_may_write(part) for part in everything(code))
        names = {name for part in everything(code) for name in part.co_names}
        return Writes(shared=may, given=may, calls=dict.fromkeys(names, Kind.SHARED))
    modules = {name for name, value in function.__globals__.items() if isinstance(value, ModuleType)}
    return _Analysis(tree, modules, own, first=first, others=others).result()


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _tree_of(code: CodeType) -> _Function | None:
    """Return the function's tree; ``None`` where its text is not there, or is one of several in a line."""
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    if code.co_name == "<lambda>":
        found = [node for node in ast.walk(module) if isinstance(node, ast.Lambda)]
        return found[0] if len(found) == 1 else None
    return next((node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)), None)


def _may_write(code: CodeType) -> bool:
    names = {*code.co_names}
    if not names.isdisjoint(MUTATING | MUTATES_ARGUMENTS | SHOWS | FILES | ANYTHING) or any(map(_is_in_place, names)):
        return True
    steps = dis.get_instructions(code)
    return any(step.opname in _STORING or (step.opname == "BINARY_OP" and step.argrepr.endswith("=")) for step in steps)


def _is_in_place(name: str) -> bool:
    """Return whether a method of this name writes to its tensor, as PyTorch names them."""
    return name.endswith("_") and not name.startswith("_")


class _Analysis:
    """One function's text, gone through until the kinds of its names do not change any more."""

    def __init__(self, tree: _Function, modules: set[str], own: Set[str], *, first: Kind, others: Kind) -> None:
        self._body: list[ast.AST] = [*tree.body] if isinstance(tree.body, list) else [tree.body]
        self._modules, self._own = modules, own
        self._kinds: dict[str, Kind] = {}
        self._outer: set[str] = set()  # names that it assigns in a scope around it
        arguments = tree.args
        named = [*arguments.posonlyargs, *arguments.args]
        for index, argument in enumerate((*named, *arguments.kwonlyargs)):
            self._kinds[argument.arg] = first if index == 0 and named else others
        with_defaults = [*named[len(named) - len(arguments.defaults) :], *arguments.kwonlyargs]
        for argument, default in zip(with_defaults, (*arguments.defaults, *arguments.kw_defaults), strict=True):
            if default is not None and not isinstance(default, ast.Constant | ast.Name | ast.Attribute | ast.UnaryOp):
                self._kinds[argument.arg] = Kind.SHARED  # `def f(x, cache={})`
        for some in (arguments.vararg, arguments.kwarg):
            if some is not None:
                self._kinds[some.arg] = max(Kind.NEW_OUTSIDE, others)
        self._nodes = [node for part in self._body for node in ast.walk(part)]
        self._made_once = {id(made) for node in self._nodes if isinstance(node, ast.If) for made in _made_once(node, named)}
        for node in self._nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                self._outer.update(node.names)
            elif isinstance(node, ast.arg):
                self._kinds[node.arg] = Kind.SHARED  # of functions in it
            elif isinstance(node, ast.alias):
                self._modules.add((node.asname or node.name).partition(".")[0])

    def result(self) -> Writes:
        """Return what is written to."""
        while True:
            before = dict(self._kinds)
            for node in self._nodes:
                for target, kind in self._bound(node):
                    self._bind(target, kind)
            if before == self._kinds:
                break
        found = Writes()
        for node in self._nodes:
            for kind in self._written(node):
                found.shared |= kind is Kind.SHARED
                found.given |= kind is Kind.GIVEN
            if isinstance(node, ast.Call):
                name, given = _name_of(node.func), [self.kind(part) for part in _arguments(node)]
                found.calls[name] = max([found.calls.get(name, Kind.NEW), *given])
        return found

    # -- names -------------------------------------------------------------------------------------------------------

    def _bound(self, node: ast.AST) -> Iterator[tuple[ast.expr, Kind]]:
        """Yield what a node assigns to, each with the kind of the value."""
        match node:
            case ast.Assign():
                for target in node.targets:
                    yield from self._paired(target, node.value)
            case ast.AnnAssign(value=ast.expr(), target=target) | ast.NamedExpr(target=target):
                yield target, self.kind(node.value)
            case ast.AugAssign(target=ast.Name()):
                yield node.target, self.kind(node.target)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                yield node.target, self._inside(node.iter)
            case ast.withitem(optional_vars=ast.expr() as target):
                yield target, self.kind(node.context_expr)

    def _paired(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, Kind]]:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List) and len(target.elts) == len(value.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                yield from self._paired(one, part)
        else:
            yield target, self.kind(value)

    def _bind(self, target: ast.expr, kind: Kind) -> None:
        match target:
            case ast.Name():
                self._kinds[target.id] = max(kind, self._kinds.get(target.id, Kind.NEW))
            case ast.Tuple() | ast.List():
                for part in target.elts:
                    self._bind(part, _part_of(kind))
            case ast.Starred():
                self._bind(target.value, kind)

    # -- kinds -------------------------------------------------------------------------------------------------------

    def kind(self, node: ast.expr | None) -> Kind:
        """Return where the value of an expression comes from."""
        match node:
            case (
                None | ast.Constant() | ast.JoinedStr() | ast.FormattedValue() | ast.Compare() | ast.UnaryOp() | ast.Lambda() | ast.Slice()
            ):
                return Kind.NEW
            case ast.Name():
                return self._kinds.get(node.id, Kind.SHARED)
            case ast.BinOp():
                return min(Kind.NEW_OUTSIDE, max(self.kind(node.left), self.kind(node.right)))
            case ast.List() | ast.Tuple() | ast.Set():
                return self._outside(node.elts)
            case ast.Dict():
                return self._outside([part for part in (*node.keys, *node.values) if part is not None])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._outside([node.elt])
            case ast.DictComp():
                return self._outside([node.key, node.value])
            case ast.IfExp():
                return max(self.kind(node.body), self.kind(node.orelse))
            case ast.BoolOp():
                return max(map(self.kind, node.values))
            case ast.NamedExpr() | ast.Starred() | ast.Await():
                return self.kind(node.value)
            case ast.Attribute():
                return Kind.NEW if node.attr in PLAIN_ATTRIBUTES else _part_of(self.kind(node.value))
            case ast.Subscript():
                return _part_of(self.kind(node.value))
            case ast.Call():
                return self._kind_of_call(node)
        return Kind.SHARED

    def _kind_of_call(self, node: ast.Call) -> Kind:
        name = _name_of(node.func)
        by_name = isinstance(node.func, ast.Name)
        if name in self._own or (by_name and name in CHOOSES):
            return Kind.SHARED
        if name in MAKES:
            return Kind.NEW
        given = [self.kind(part) for part in _arguments(node)]
        if isinstance(node.func, ast.Attribute) and not self._is_module(node.func.value):
            given.append(self.kind(node.func.value))
        most = max(given, default=Kind.NEW)
        if name in MAKES_OUTSIDE:
            return min(Kind.NEW_OUTSIDE, most)
        return Kind.SHARED if by_name else _part_of(most)

    def _outside(self, parts: list[ast.expr]) -> Kind:
        return Kind.NEW if all(self.kind(part) is Kind.NEW for part in parts) else Kind.NEW_OUTSIDE

    def _inside(self, node: ast.expr) -> Kind:
        return _part_of(self.kind(node))

    def _is_module(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._modules and node.id not in self._kinds

    # -- what is written to ------------------------------------------------------------------------------------------

    def _written(self, node: ast.AST) -> Iterator[Kind]:
        """Yield the kinds of what a node writes to."""
        match node:
            case ast.Assign() if id(node) in self._made_once:
                pass
            case ast.Assign():
                yield from (kind for target in node.targets for kind in self._stored(target))
            case ast.AnnAssign(value=ast.expr()) | ast.For() | ast.AsyncFor() | ast.comprehension():
                yield from self._stored(node.target)
            case ast.AugAssign():
                yield self.kind(node.target) if isinstance(node.target, ast.Name) else max(self._stored(node.target))
                yield from self._stored(node.target)
            case ast.Delete():
                yield from (kind for target in node.targets for kind in self._stored(target))
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from self._stored(target)
            case ast.Call():
                yield from self._written_by_call(node)
            case ast.FunctionDef() | ast.ClassDef() if node.name in self._outer:
                yield Kind.SHARED

    def _stored(self, target: ast.expr) -> Iterator[Kind]:
        match target:
            case ast.Name():
                yield Kind.SHARED if target.id in self._outer else Kind.NEW
            case ast.Attribute() | ast.Subscript():
                yield self.kind(target.value)
            case ast.Tuple() | ast.List():
                yield from (kind for part in target.elts for kind in self._stored(part))
            case ast.Starred():
                yield from self._stored(target.value)

    def _written_by_call(self, node: ast.Call) -> Iterator[Kind]:
        name = _name_of(node.func)
        if name in SHOWS or name in FILES or name in ANYTHING or (name == "open" and _opens_to_write(node)):
            yield Kind.SHARED
        of_module = not isinstance(node.func, ast.Attribute) or self._is_module(node.func.value)
        if of_module and (name in MUTATES_ARGUMENTS or _is_in_place(name)):
            yield from map(self.kind, _arguments(node))
        elif not of_module and (name in MUTATING or _is_in_place(name)):
            assert isinstance(node.func, ast.Attribute)
            yield self.kind(node.func.value)
        elif name in MUTATES_ARGUMENTS:  # `self.rng.shuffle(self.order)`
            yield from map(self.kind, _arguments(node))
        yield from (self.kind(keyword.value) for keyword in node.keywords if keyword.arg == "out")
        if any(keyword.arg == "inplace" for keyword in node.keywords) and isinstance(node.func, ast.Attribute):
            yield self.kind(node.func.value)
            yield from map(self.kind, node.args)


def _made_once(node: ast.If, arguments: list[ast.arg]) -> Iterator[ast.Assign]:
    """Yield what gives the object an attribute that it lacks, whichever sample comes: ``if self.file is None: self.file = open(…)``."""
    asked = {part.attr for part in ast.walk(node.test) if isinstance(part, ast.Attribute)}
    asked.update(part.value for part in ast.walk(node.test) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    owner = arguments[0].arg if arguments else ""
    for made in node.body:
        match made:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]) if name == owner and attribute in asked:
                names = {part.id for part in ast.walk(made.value) if isinstance(part, ast.Name)}
                if len(node.body) == 1 and isinstance(made.value, ast.Call) and names.isdisjoint({one.arg for one in arguments[1:]}):
                    yield made


def _part_of(kind: Kind) -> Kind:
    return Kind.SHARED if kind is Kind.NEW_OUTSIDE else kind


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _opens_to_write(node: ast.Call) -> bool:
    modes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    return any(not isinstance(mode, ast.Constant) or not set("wax+").isdisjoint(str(mode.value)) for mode in modes)
