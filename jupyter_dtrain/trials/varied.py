"""What varies from trial to trial: a name of the notebook, or a part of what it names, as ``config.lr`` and ``config["lr"]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import UsageError

_MISSING: Any = object()
_VALUE = "_jupyter_dtrain_value"


def root_of(target: str) -> str:
    """Return the name that `target` begins with."""
    return target.partition(".")[0].partition("[")[0]


def set_in(namespace: dict[str, Any], target: str, value: object) -> None:
    """Let `target` be `value` in `namespace`; a `UsageError` where it cannot be set."""
    if target == root_of(target):
        namespace[target] = value
        return
    try:
        exec(f"{target} = {_VALUE}", namespace, {_VALUE: value})
    except Exception as error:
        raise UsageError(f"--vary {target}: it cannot be set, {type(error).__name__}: {error}.") from error


@contextmanager
def having(namespace: dict[str, Any], values: Mapping[str, Any]) -> Iterator[None]:
    """Let targets have other values until the end of the ``with`` block."""
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
    """Return what `target` is; only a name may be missing, as nobody knows how to take away what was set otherwise."""
    if target == root_of(target):
        return namespace.get(target, _MISSING)
    try:
        return eval(target, namespace)
    except Exception as error:
        raise UsageError(f"--vary {target}: the notebook has nothing there, {type(error).__name__}: {error}.") from error
