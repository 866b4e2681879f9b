"""Find branches that depend on a number (``if self.steps > 100:``, ``if epoch >= warmup:``) and mix samples of a batch.

A call of a model shows what it does with samples only on the path that it takes. Numbers change from call to call, so a branch may be taken
for the first time long after a model was checked. Therefore the source is searched. False positives only cost time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_SIZES = frozenset(("dim", "ndim", "ndimension", "shape", "size", "numel", "len"))
"""Comparisons of these with a number depend on a tensor's shape, which the first call shows."""
# fmt: off
_OF_ALL = frozenset((
    "mean", "sum", "std", "var", "std_mean", "var_mean", "norm", "max", "min", "amax", "amin", "aminmax", "median", "quantile", "logsumexp",
    "prod", "all", "any",
))
"""Without a dim, these reduce over all samples."""
_ALONG = frozenset((
    "sort", "argsort", "argmax", "argmin", "topk", "cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax", "normalize", "roll",
    "flip",
))
# fmt: on
_MIX = frozenset(("randperm", "cdist", "pdist", "cov", "corrcoef"))
_MODULES = frozenset(("torch", "F", "functional", "linalg", "np", "numpy"))
_DIMS = frozenset(("dim", "dims", "axis"))


def mixes(part: ast.AST, called: Set[str] = frozenset()) -> bool:
    """Return whether a part of a source text mixes samples of a batch, or calls one of the functions `called`."""
    return any((isinstance(node, ast.Call) and _name_of(node) in called) or _is_of_samples(node) for node in ast.walk(part))


def mixes_by_number(function: ast.AST, called: Set[str] = frozenset()) -> bool:
    """Return whether a number may decide whether a function mixes samples of a batch.

    Parameters
    ----------
    function : ast.AST
    called : set of str
        Names of functions, and of modules, that mix samples.
    """
    fixed = {name for node in ast.walk(function) for name in _fixed_names(node)}
    return any(
        isinstance(node, ast.If | ast.IfExp)
        and _goes_by_number(node.test, fixed)
        and any(mixes(branch, called) for branch in _branches(node, function))
        for node in ast.walk(function)
    )


def _name_of(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)


def _fixed_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that `node` binds to values that are equal in all calls: a loop variable, a size."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.For | ast.comprehension):
        targets = [node.target]
    elif isinstance(node, ast.Assign) and not _SIZES.isdisjoint(_words(node.value)):
        targets = node.targets
    for target in targets:
        yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _words(node: ast.AST) -> set[str]:
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _goes_by_number(test: ast.expr, fixed: set[str]) -> bool:
    for part in ast.walk(test):
        if isinstance(part, ast.Compare):
            sides = [part.left, *part.comparators]
            by_number = all(isinstance(op, _ORDERED) for op in part.ops) and not any(map(_is_flag, sides))
        else:
            by_number = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
        if by_number and (_SIZES | fixed).isdisjoint(_words(part)):
            return True
    return False


def _is_flag(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bool | None)


def _branches(node: ast.If | ast.IfExp, function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose execution depends on the test of `node`."""
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
        return
    yield from (*node.body, *node.orelse)
    if any(isinstance(part, ast.Return | ast.Continue | ast.Break) for branch in (*node.body, *node.orelse) for part in ast.walk(branch)):
        end = node.end_lineno or node.lineno
        yield from (part for part in ast.walk(function) if isinstance(part, ast.stmt) and part.lineno > end)


def _is_of_samples(node: ast.AST) -> bool:
    """Return whether an expression may mix samples of a batch, along its first dim."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return ast.dump(node.left) in map(ast.dump, _turned(node.right)) or ast.dump(node.right) in map(ast.dump, _turned(node.left))
    if not isinstance(node, ast.Call):
        return False
    args, name, of_module = node.args, _name_of(node), False
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        of_module = (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", None)) in _MODULES
    elif name not in _MIX:  # the builtin `sum` takes a list
        return False
    if name in ("mm", "matmul") and of_module and len(args) == 2:
        return ast.dump(args[0]) in map(ast.dump, _turned(args[1]))
    given = [*args[of_module:], *(keyword.value for keyword in node.keywords if keyword.arg in _DIMS)]
    along_first = any(
        isinstance(part, ast.Constant) and part.value == 0 and part.value is not False for arg in given for part in ast.walk(arg)
    )
    return name in _MIX or (name in _OF_ALL and not given) or (name in _OF_ALL | _ALONG and along_first)


def _turned(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expression of which `node` is the transpose."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("t", "transpose"):
        yield node.func.value
