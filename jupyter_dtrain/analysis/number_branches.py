"""Find expressions that mix samples of a batch in branches that a model may take for the first time long after it was checked.

A call of a model shows what it does with samples only on the path that it takes. Its flags (``self.training``, ``masked=True``) are
known to the run, which checks each combination. Anything else may change from call to call: a number (``if self.steps > 100:``), what was
computed from it (``late = epoch >= warmup``), a global name, a setting in an object of the user's. Therefore the source is searched. False
positives only cost time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from .ast_nodes import name_of
from .batch_sizes import batch_sizes
from .sample_mixing import dims_of, mixing

_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_SIZES = frozenset(("dim", "ndim", "ndimension", "shape", "size", "numel", "len"))
"""Comparisons of these with a number depend on a tensor's shape, which the first call shows."""
_OF_TENSORS = frozenset(("device", "dtype", "grad_fn", "is_cuda", "is_floating_point", "is_leaf", "is_sparse", "requires_grad"))
_OF_KINDS = frozenset(("callable", "hasattr", "is_scripting", "is_tensor", "is_tracing", "isinstance", "issubclass", "type"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of the code around a function.

    Attributes
    ----------
    called : set of str
        Names of functions, and of modules, that mix samples.
    own : set of str
        Names of all functions, and of modules, whose code is known.
    flags : set of str
        Attributes of modules that hold flags, whose changes the run notices.
    off, on : set of str
        Those of them that are false, or true, in all modules.
    stored : set of str
        Attributes that the functions set.
    given_numbers : set of str
        Names of functions that are given the outcome of a test that may change.
    """

    called: Set[str] = field(default_factory=frozenset)
    own: Set[str] = field(default_factory=frozenset)
    flags: Set[str] = frozenset(("training",))
    off: Set[str] = field(default_factory=frozenset)
    on: Set[str] = field(default_factory=frozenset)
    stored: Set[str] = field(default_factory=frozenset)
    given_numbers: Set[str] = field(default_factory=frozenset)


class Branches:
    """The branches of one function.

    Parameters
    ----------
    function : ast.AST
    known : Known
    names : set of str
        The names that the function is called by.
    """

    def __init__(self, function: ast.AST, known: Known, names: Set[str] = frozenset()) -> None:
        own = next((node for node in ast.walk(function) if isinstance(node, _Function)), None)
        self._function, self._known = function, known
        self._params = {} if own is None else dict(_params(own))
        self._given_numbers = not names.isdisjoint(known.given_numbers)
        self._assigned: dict[str, list[ast.expr]] = {}
        self._counted: set[str] = set()  # by loops
        for node in ast.walk(function):
            if isinstance(node, ast.For | ast.comprehension):
                self._counted.update(part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
            for name, value in _bound(node):
                self._assigned.setdefault(name, []).append(value)
        self._sizes = {name for name, values in self._assigned.items() if any(map(_is_size, values))}
        self._batch_sizes = batch_sizes(function)
        self._asked: set[str] = set()

    def mixing(self) -> Iterator[ast.AST]:
        """Yield the expressions that mix samples in branches that may be taken later on."""
        for node in ast.walk(self._function):
            if isinstance(node, ast.If | ast.IfExp | ast.While):
                changes = self.may_change(node.test)
            elif isinstance(node, ast.Match):
                changes = self.may_change(node.subject)
            else:
                changes = isinstance(node, ast.For) and not _is_fixed(node.iter)  # the first call may loop over nothing
            if changes:
                for branch in _branches(node, self._function):
                    yield from mixing(branch, self._known.called, self._known.own, self._batch_sizes)

    def turns(self) -> bool:
        """Return whether an operation may go along another dim from some call on."""
        calls = (node for node in ast.walk(self._function) if isinstance(node, ast.Call) and not _is_own(node.func))
        return any(self._may_turn(dim) for call in calls for dim in dims_of(call))

    def _may_turn(self, dim: ast.expr) -> bool:
        match dim:
            case ast.IfExp():
                return self.may_change(dim.test) or self._may_turn(dim.body) or self._may_turn(dim.orelse)
            case ast.Tuple() | ast.List():
                return any(map(self._may_turn, dim.elts))
            case ast.UnaryOp():
                return self._may_turn(dim.operand)
            case ast.Attribute():
                return dim.attr in self._known.stored
            case ast.Name() if dim.id in self._assigned and dim.id not in self._asked:
                self._asked.add(dim.id)
                try:
                    return any(map(self._may_turn, self._assigned[dim.id]))
                finally:
                    self._asked.discard(dim.id)
            case ast.Name():
                return dim.id in self._params and self._given_numbers
            case ast.BinOp() | ast.Call() | ast.Subscript():
                return not _is_size(dim) and any(isinstance(part, ast.Attribute) for part in ast.walk(dim))
        return False

    def calls_with_numbers(self) -> Iterator[str]:
        """Yield the names of functions that are given the outcome of a test that may change."""
        for node in ast.walk(self._function):
            if isinstance(node, ast.Call) and (name := name_of(node)):
                given = (*node.args, *(keyword.value for keyword in node.keywords))
                if any(self._is_outcome(value) and self.may_change(value) for value in given):
                    yield name

    def _is_outcome(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return any(map(self._is_outcome, (part for part in self._assigned.get(value.id, ()) if not isinstance(part, ast.Name))))
        return isinstance(value, ast.Compare | ast.BoolOp | ast.IfExp) or (isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not))

    def may_change(self, test: ast.expr) -> bool:
        """Return whether the outcome of a test may change from call to call without a change of flags, or of sizes."""
        if isinstance(test, ast.BoolOp):
            settled = self._known.off if isinstance(test.op, ast.And) else self._known.on
            if any(_is_own(value) and value.attr in settled for value in test.values):  # type: ignore[attr-defined]  # an attribute
                return False
            return any(map(self.may_change, test.values))
        if isinstance(test, ast.UnaryOp):
            return self.may_change(test.operand)
        if isinstance(test, ast.IfExp):
            return any(map(self.may_change, (test.test, test.body, test.orelse)))
        if isinstance(test, ast.NamedExpr):
            return self.may_change(test.value)
        if _is_size(test) or not self._sizes.isdisjoint(part.id for part in ast.walk(test) if isinstance(part, ast.Name)):
            return False
        if isinstance(test, ast.Compare):
            sides = [test.left, *test.comparators]
            by_number = all(isinstance(op, _ORDERED) for op in test.ops) and not any(map(_is_flag, sides))
            return any(self._changes(side, by_number=by_number) for side in sides)
        return self._changes(test, by_number=isinstance(test, ast.BinOp))

    def _changes(self, value: ast.expr, *, by_number: bool) -> bool:
        if isinstance(value, ast.Constant):
            return False
        if isinstance(value, ast.Tuple | ast.List | ast.Set | ast.BinOp):
            parts = (value.left, value.right) if isinstance(value, ast.BinOp) else value.elts
            return any(self._changes(part, by_number=by_number) for part in parts)
        if isinstance(value, ast.Call):
            return name_of(value) not in _OF_KINDS
        if isinstance(value, ast.Attribute):
            if _is_own(value):
                return value.attr not in self._known.flags
            return value.attr not in _OF_TENSORS
        if not isinstance(value, ast.Name):
            return True
        name = value.id
        if name in self._assigned and name not in self._asked:
            self._asked.add(name)
            try:
                return any(map(self.may_change, self._assigned[name])) or (name in self._params and by_number)
            finally:
                self._asked.discard(name)
        if name in self._params:
            return by_number or self._given_numbers or _is_number(self._params[name])
        return name not in self._counted and name not in self._asked


def mixes_by_number(function: ast.AST, known: Known | None = None) -> bool:
    """Return whether something that no flag tells may decide whether a function mixes samples of a batch."""
    branches = Branches(function, known or Known())
    return branches.turns() or next(branches.mixing(), None) is not None


def _params(function: _Function) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the parameters of a function, with their defaults."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
    yield from ((arg.arg, default) for arg, default in zip(positional, defaults, strict=True))
    yield from ((arg.arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True))
    yield from ((arg.arg, None) for arg in (args.vararg, args.kwarg) if arg is not None)


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a node assigns to, with their values."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ((part.id, node.value) for part in ast.walk(target) if isinstance(part, ast.Name))
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _is_own(value: ast.expr) -> bool:
    """Return whether a value is an attribute of the module, such as a flag or a layer, whose dims are no arguments."""
    return isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self"


def _is_size(value: ast.expr) -> bool:
    """Return whether a value is of a tensor's size; the length of an attribute may be that of a list that grows."""
    for part in ast.walk(value):
        if isinstance(part, ast.Attribute) and part.attr in _SIZES:
            return True
        if isinstance(part, ast.Call) and name_of(part) == "len" and not any(isinstance(arg, ast.Attribute) for arg in part.args):
            return True
    return False


def _is_flag(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bool | None)


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _is_fixed(iterable: ast.expr) -> bool:
    if isinstance(iterable, ast.Call) and name_of(iterable) == "range":
        return all(isinstance(arg, ast.Constant) for arg in iterable.args)
    return isinstance(iterable, ast.Constant)


def _branches(node: ast.AST, function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose execution depends on `node`."""
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
        return
    if isinstance(node, ast.Match):
        own = [part for case in node.cases for part in case.body]
    else:
        assert isinstance(node, ast.If | ast.While | ast.For)
        own = [*node.body, *node.orelse]
    yield from own
    if any(isinstance(part, ast.Return | ast.Continue | ast.Break) for branch in own for part in ast.walk(branch)):
        end = node.end_lineno or node.lineno
        yield from (part for part in ast.walk(function) if isinstance(part, ast.stmt) and part.lineno > end)
