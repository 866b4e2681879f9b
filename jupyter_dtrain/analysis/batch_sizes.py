"""Find the expressions of a source text that compute with the number of samples of a batch, the size of its first dim.

Not meant are shapes, which are made of it: ``h.view(len(x) * 4, -1)``, ``torch.zeros(x.size(0), 8)``. False positives only cost time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from .ast_nodes import name_of

_COMPUTING = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.FloorDiv, ast.Mod)
_COMPUTING_FUNCTIONS = frozenset(("add", "div", "divide", "fmod", "mul", "multiply", "pow", "remainder", "sub", "subtract", "true_divide"))
# fmt: off
_SHAPED = frozenset((
    "arange", "broadcast_to", "chunk", "empty", "expand", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "pad", "rand", "randn",
    "range", "repeat", "repeat_interleave", "reshape", "split", "tile", "unflatten", "view", "zeros",
))
# fmt: on
"""Functions that are given shapes, or lengths of dims."""


def batch_sizes(function: ast.AST) -> set[str]:
    """Return the variables of a function that hold the number of samples of a batch."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                first = target.elts[0] if isinstance(target, ast.Tuple | ast.List) and target.elts else None
                if isinstance(first, ast.Name) and _is_shape(node.value):
                    found.add(first.id)
                elif isinstance(target, ast.Name) and _is_size(node.value, frozenset()):
                    found.add(target.id)
        elif isinstance(node, ast.NamedExpr) and _is_size(node.value, frozenset()):
            found.add(node.target.id)
    return found


def computing(part: ast.AST, sizes: Set[str]) -> Iterator[ast.AST]:
    """Yield the expressions in a part of a source text that compute with the number of samples, which the variables `sizes` hold."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, _COMPUTING) and any(_is_size(side, sizes) for side in (part.left, part.right)):
        yield part
    elif isinstance(part, ast.AugAssign) and isinstance(part.op, _COMPUTING) and _is_size(part.value, sizes):
        yield part.value
    elif isinstance(part, ast.Call) and name_of(part) in _COMPUTING_FUNCTIONS and any(_is_size(value, sizes) for value in part.args):
        yield part
    is_shape = isinstance(part, ast.Call) and name_of(part) in _SHAPED
    for child in ast.iter_child_nodes(part):
        if not is_shape or (isinstance(part, ast.Call) and child is part.func):
            yield from computing(child, sizes)


def _is_size(value: ast.expr, sizes: Set[str]) -> bool:
    match value:
        case ast.Name():
            return value.id in sizes
        case ast.Call(args=[argument]) if name_of(value) in ("len", "float", "int"):
            return _is_size(argument, sizes) if name_of(value) != "len" else not isinstance(argument, ast.Attribute)
        case ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)]):
            return True
        case ast.Subscript(slice=ast.Constant(value=0)):
            return _is_shape(value.value)
    return False


def _is_shape(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and value.func.attr == "size" and not value.args
    return isinstance(value, ast.Attribute) and value.attr == "shape"
