"""Origins of the values of a function's expressions: new, given by the caller, or shared (see :mod:`.stores`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from enum import IntEnum

from .method_names import CHOOSES, MAKES, MAKES_OUTSIDE, PLAIN_ATTRIBUTES


class Kind(IntEnum):
    """Origin of a value; writes to a larger kind matter more."""

    NEW = 0
    NEW_OUTSIDE = 1
    """A new container of objects that may have existed before."""
    GIVEN = 2
    """An argument, or a part of one."""
    SHARED = 3


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class ValueKinds:
    """The kinds of the expressions in one function's source, iterated until the kinds of its names are stable.

    Parameters
    ----------
    tree : Function
    modules, own : set of str
        Names of modules, and of user-defined functions, whose results may be anything.
    first, others : Kind
        Kinds of its first and of its other arguments.

    Attributes
    ----------
    nodes : list of ast.AST
        The nodes of its body.
    outer : set of str
        Names that it assigns in an enclosing scope.
    """

    def __init__(self, tree: Function, modules: set[str], own: Set[str], *, first: Kind, others: Kind) -> None:
        body: list[ast.AST] = [*tree.body] if isinstance(tree.body, list) else [tree.body]
        self._modules, self._own = modules, own
        self._kinds: dict[str, Kind] = {}
        self.outer: set[str] = set()
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
        self.nodes = [node for part in body for node in ast.walk(part)]
        for node in self.nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                self.outer.update(node.names)
            elif isinstance(node, ast.arg):
                self._kinds[node.arg] = Kind.SHARED  # arguments of nested functions
            elif isinstance(node, ast.alias):
                self._modules.add((node.asname or node.name).partition(".")[0])
        while True:
            before = dict(self._kinds)
            for node in self.nodes:
                for target, kind in self._bound(node):
                    self._bind(target, kind)
            if before == self._kinds:
                break

    def _bound(self, node: ast.AST) -> Iterator[tuple[ast.expr, Kind]]:
        """Yield the targets that a node assigns, each with the kind of the value."""
        match node:
            case ast.Assign():
                for target in node.targets:
                    yield from self._paired(target, node.value)
            case ast.AnnAssign(value=ast.expr(), target=target) | ast.NamedExpr(target=target):
                yield target, self.of(node.value)
            case ast.AugAssign(target=ast.Name()):
                yield node.target, self.of(node.target)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                yield node.target, self._inside(node.iter)
            case ast.withitem(optional_vars=ast.expr() as target):
                yield target, self.of(node.context_expr)

    def _paired(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, Kind]]:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List) and len(target.elts) == len(value.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                yield from self._paired(one, part)
        else:
            yield target, self.of(value)

    def _bind(self, target: ast.expr, kind: Kind) -> None:
        match target:
            case ast.Name():
                self._kinds[target.id] = max(kind, self._kinds.get(target.id, Kind.NEW))
            case ast.Tuple() | ast.List():
                for part in target.elts:
                    self._bind(part, _part_of(kind))
            case ast.Starred():
                self._bind(target.value, kind)

    # -- kinds ---------------------------------------------------------------------------------------------------------

    def of(self, node: ast.expr | None) -> Kind:
        """Return the kind of an expression's value."""
        match node:
            case (
                None | ast.Constant() | ast.JoinedStr() | ast.FormattedValue() | ast.Compare() | ast.UnaryOp() | ast.Lambda() | ast.Slice()
            ):
                return Kind.NEW
            case ast.Name():
                return self._kinds.get(node.id, Kind.SHARED)
            case ast.BinOp():
                return min(Kind.NEW_OUTSIDE, max(self.of(node.left), self.of(node.right)))
            case ast.List() | ast.Tuple() | ast.Set():
                return self._outside(node.elts)
            case ast.Dict():
                return self._outside([part for part in (*node.keys, *node.values) if part is not None])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._outside([node.elt])
            case ast.DictComp():
                return self._outside([node.key, node.value])
            case ast.IfExp():
                return max(self.of(node.body), self.of(node.orelse))
            case ast.BoolOp():
                return max(map(self.of, node.values))
            case ast.NamedExpr() | ast.Starred() | ast.Await():
                return self.of(node.value)
            case ast.Attribute():
                return Kind.NEW if node.attr in PLAIN_ATTRIBUTES else _part_of(self.of(node.value))
            case ast.Subscript():
                return _part_of(self.of(node.value))
            case ast.Call():
                return self._kind_of_call(node)
        return Kind.SHARED

    def _kind_of_call(self, node: ast.Call) -> Kind:
        name = called_name(node.func)
        by_name = isinstance(node.func, ast.Name)
        if name in self._own or (by_name and name in CHOOSES):
            return Kind.SHARED
        if name in MAKES:
            return Kind.NEW
        given = [self.of(part) for part in arguments_of(node)]
        if isinstance(node.func, ast.Attribute) and not self.is_module(node.func.value):
            given.append(self.of(node.func.value))
        most = max(given, default=Kind.NEW)
        if name in MAKES_OUTSIDE:
            return min(Kind.NEW_OUTSIDE, most)
        return Kind.SHARED if by_name else _part_of(most)

    def _outside(self, parts: list[ast.expr]) -> Kind:
        return Kind.NEW if all(self.of(part) is Kind.NEW for part in parts) else Kind.NEW_OUTSIDE

    def _inside(self, node: ast.expr) -> Kind:
        return _part_of(self.of(node))

    def is_module(self, node: ast.expr) -> bool:
        """Return whether an expression is a module, or an attribute of one."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._modules and node.id not in self._kinds


def _part_of(kind: Kind) -> Kind:
    return Kind.SHARED if kind is Kind.NEW_OUTSIDE else kind


def arguments_of(node: ast.Call) -> list[ast.expr]:
    """Return the positional and keyword arguments of a call."""
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def called_name(function: ast.expr) -> str:
    """Return the name of a called function or method, without the part before its last dot."""
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
