"""Evaluate expressions of numbers, strings, containers and names of these: ``1e-3 * 2``, ``(WIDTH // 2, "x")``.

Only a few functions of numbers and strings are called, and nothing is read from the process. So the same text has the same value
everywhere.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

_LARGEST = 1 << 200  # maximum operand of a power, a shift or a product
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_CONVERSIONS: dict[int, Callable[[Any], str]] = {ord("s"): str, ord("r"): repr, ord("a"): ascii}
_OF_TEXTS = frozenset(
    {"split", "splitlines", "join", "lower", "upper", "title", "strip", "lstrip", "rstrip", "replace", "encode", "decode"}
)
_NUMBERS_IN = frozenset({"math", "np", "numpy", "torch"})
"""Modules whose attributes that are numbers or dtypes are the same in every process."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (float, int, bool, str, complex, tuple, list, dict, set)},
    **{function.__name__: function for function in (abs, max, min, round, sum)},
}


def plain_value(text: str, known: Callable[[str], Any]) -> Any:
    """Return the value of the expression `text`.

    Parameters
    ----------
    text : str
    known : callable
        Returns the value of a name. Raises :class:`LookupError` or :class:`ValueError` if it has no plain value.

    Raises
    ------
    ValueError
        It contains something else. Errors of arithmetic are raised too.
    """
    return _value(ast.parse(text, mode="eval").body, known)


def _value(node: ast.expr, known: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return known(name)
        case ast.Attribute(value=ast.Name(module), attr=name) if module in _NUMBERS_IN and (value := _constant(module, name)) is not None:
            return value
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, known))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _combined(type(op), _value(left, known), _value(right, known))
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(side, known) for side in (left, *others)]
            return all(_COMPARED[type(op)](*two) for op, two in zip(ops, pairwise(sides), strict=True))
        case ast.BoolOp(op=op, values=parts):
            ends = bool if isinstance(op, ast.Or) else operator.not_
            for part in parts:
                if ends(value := _value(part, known)):
                    break
            return value
        case ast.JoinedStr(values=parts):
            return "".join(_value(part, known) for part in parts)
        case ast.FormattedValue(value=part, conversion=conversion, format_spec=spec):
            value = _value(part, known)
            if conversion != -1:
                value = _CONVERSIONS[conversion](value)
            return format(value, "" if spec is None else _value(spec, known))
        case ast.Tuple(elts=items):
            return tuple(_value(item, known) for item in items)
        case ast.List(elts=items):
            return [_value(item, known) for item in items]
        case ast.Set(elts=items):
            return {_value(item, known) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(key, known): _value(value, known) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, known) else orelse, known)
        case ast.Call(func=function, args=args, keywords=keywords) if all(keyword.arg for keyword in keywords):
            values = [_value(arg, known) for arg in args]
            return _function(function, known)(*values, **{str(keyword.arg): _value(keyword.value, known) for keyword in keywords})
    raise ValueError(ast.dump(node))


def _combined(op: type[ast.operator], left: Any, right: Any) -> Any:
    if op in (ast.Pow, ast.LShift, ast.Mult) and any(isinstance(side, int) and abs(side) > _LARGEST for side in (left, right)):
        raise ValueError("too large")
    if op in (ast.Pow, ast.LShift) and isinstance(right, int) and abs(right) > 1000:
        raise ValueError("too large")
    if op is ast.Mult and any(
        isinstance(a, str | bytes | list | tuple) and isinstance(b, int) and b > 1000 for a, b in ((left, right), (right, left))
    ):
        raise ValueError("too long")
    return _BINARY[op](left, right)


def _constant(module: str, name: str) -> Any:
    """Return the number or dtype with this name in a module; ``None`` for anything else."""
    found = sys.modules.get("numpy" if module == "np" else module)
    value = getattr(found, "__dict__", {}).get(name)
    return value if isinstance(value, float) or type(value).__name__ == "dtype" else None


def _function(node: ast.expr, known: Callable[[str], Any]) -> Callable[..., Any]:
    match node:
        case ast.Name(id=name):
            return _FUNCTIONS[name]
        case ast.Attribute(value=ast.Name("math"), attr=name) if callable(getattr(math, name, None)):
            function: Callable[..., Any] = getattr(math, name)
            return function
        case ast.Attribute(value=text, attr=name) if name in _OF_TEXTS and isinstance(value := _value(text, known), str | bytes):
            method: Callable[..., Any] = getattr(value, name)
            return method
    raise ValueError(ast.dump(node))
