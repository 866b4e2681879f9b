"""Evaluate the expressions of ``--vary``, and make a trial of each combination of their values."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError


@dataclass(frozen=True)
class Trial:
    """The cell with one value for each varied name.

    Attributes
    ----------
    number : int
        Number of the trial, from 1.
    values : mapping of str to object
        Values by name.
    texts : tuple of (str, str)
        Names and the texts of their values.
    """

    number: int
    values: Mapping[str, Any]
    texts: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """The trial's label: ``lr=0.1 width=64``."""
        return " ".join(f"{name}={text}" for name, text in self.texts)

    @classmethod
    def of(cls, number: int, chosen: Mapping[str, tuple[str, Any]]) -> Trial:
        """Return a trial from the chosen values, each with its text."""
        return cls(
            number,
            values={name: value for name, (_, value) in chosen.items()},
            texts=tuple((name, text) for name, (text, _) in chosen.items()),
        )


Axis = list[tuple[str, Any]]
"""The values of a varied name, each with its text."""


def trials_of(vary: Iterable[tuple[str, str]], namespace: dict[str, Any]) -> list[Trial]:
    """Return a trial for each combination of values, the last name varying fastest; for parameters and errors, see `axes_of`."""
    axes = axes_of(vary, namespace)
    return [Trial.of(number, dict(zip(axes, chosen, strict=True))) for number, chosen in enumerate(itertools.product(*axes.values()), 1)]


def axes_of(vary: Iterable[tuple[str, str]], namespace: dict[str, Any]) -> dict[str, Axis]:
    """Return the values of each name.

    Parameters
    ----------
    vary : iterable of (str, str)
        Names, each with an expression: values separated by commas, or a list, a range or an array of them.
    namespace : dict
        Namespace of the expressions. A single word that is not a name there is a string.

    Raises
    ------
    UsageError
        An expression cannot be evaluated or has no values, or a name is repeated.
    """
    axes: dict[str, Axis] = {}
    for name, expression in vary:
        check_new(name, axes)
        axes[name] = _told_apart(_values(name, expression, namespace))
    return axes


def check_new(name: str, axes: Container[str]) -> None:
    """Raise a `UsageError` if a name varies already."""
    if name in axes:
        raise UsageError(f"--vary {name}: it is given twice; give all its values in one, as {name}=1,2,3.")


def _values(name: str, expression: str, namespace: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the values of an expression, each with its text."""
    given = f"--vary {name}={expression}"
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(f"{given}: this is no Python expression, {error.msg}. Values have commas between them: lr=0.1,0.01.") from None
    listed = isinstance(tree, ast.Tuple | ast.List) and not any(isinstance(part, ast.Starred) for part in tree.elts)
    parts = tree.elts if isinstance(tree, ast.Tuple | ast.List) and listed else [tree]
    found: list[tuple[str, Any]] = []
    for part in parts:
        value = _evaluated(part, given, namespace)
        items = None if listed else _items(value)
        if items is None:
            text = ast.unparse(part) if isinstance(part, ast.Constant | ast.Attribute | ast.Name | ast.UnaryOp) else _text(value)
            found.append((value if isinstance(value, str) else text, value))
        else:
            found += [(_text(item), item) for item in items]
    if not found:
        raise UsageError(f"{given}: there are no values in it.")
    return found


def _evaluated(part: ast.expr, given: str, namespace: dict[str, Any]) -> Any:
    code = compile(ast.Expression(part), "--vary", "eval")
    try:
        return eval(code, namespace)
    except NameError as error:
        if isinstance(part, ast.Name):
            return part.id
        raise UsageError(f"{given}: {error}.") from None
    except Exception as error:
        raise UsageError(f"{given}: {type(error).__name__}: {error}.") from error


def _items(value: Any) -> list[Any] | None:
    """Return the items of a list, a range or an array; ``None`` for a single value."""
    if isinstance(value, list | tuple | range | set | frozenset):
        return list(value)
    to_list = getattr(value, "tolist", None)  # of arrays and tensors: the cell gets plain numbers
    if callable(to_list) and getattr(value, "ndim", 0) == 1:
        return list(to_list())
    return None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, bool | int | str):
        return str(value)
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    text = repr(value)
    return text if len(text) <= 24 and "\n" not in text else type(value).__name__


def _told_apart(values: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the values with unique texts."""
    counts = Counter(text for text, _ in values)
    met: Counter[str] = Counter()
    told = []
    for text, value in values:
        met[text] += 1
        told.append((f"{text}#{met[text]}" if counts[text] > 1 else text, value))
    return told


# A target is what varies from trial to trial: a name of the notebook, or a part of its value, as ``config.lr`` and ``config["lr"]``.

_MISSING: Any = object()
_VALUE = "_jupyter_dtrain_value"


def root_of(target: str) -> str:
    """Return the name at the start of `target`."""
    return target.partition(".")[0].partition("[")[0]


def set_in(namespace: dict[str, Any], target: str, value: object) -> None:
    """Set `target` to `value` in `namespace`; raise a `UsageError` if that fails."""
    if target == root_of(target):
        namespace[target] = value
        return
    try:
        exec(f"{target} = {_VALUE}", namespace, {_VALUE: value})
    except Exception as error:
        raise UsageError(f"--vary {target}: it cannot be set, {type(error).__name__}: {error}.") from error


@contextmanager
def having(namespace: dict[str, Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Set targets to other values until the end of the ``with`` block."""
    before: dict[str, Any] = {}
    try:
        for target, value in values.items():
            before[target] = _value_of(target, namespace)
            set_in(namespace, target, value)
        yield
    finally:
        for target, value in reversed(before.items()):
            if value is not _MISSING:
                set_in(namespace, target, value)
            elif target in namespace:
                del namespace[target]


def _value_of(target: str, namespace: dict[str, Any]) -> Any:
    """Return the value of `target`. Only a plain name may be missing, as an attribute or item that was set could not be removed again."""
    if target == root_of(target):
        return namespace.get(target, _MISSING)
    try:
        return eval(target, namespace)
    except Exception as error:
        raise UsageError(f"--vary {target}: the notebook has nothing there, {type(error).__name__}: {error}.") from error
