"""What stands where in the libraries of a process: compared on engines before and after a run."""

from __future__ import annotations

import builtins
import inspect
import pickle
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

from jupyter_dtrain.system.patches import ENGINE, TABLE, Replaced, owner_name, rows_of

LIBRARIES = frozenset(
    {row.owner.partition(".")[0] for row in TABLE}
    | {"posix", "logging", "threading", "pathlib", "subprocess", "multiprocessing", "contextlib", "time", "signal", "pickle", "copy"}
    | {"functools", "matplotlib"}
) - {"sys"}  # whose other hooks are IPython's and threads' to set
CODE = (FunctionType, BuiltinFunctionType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType, type)
WRAPPED = (staticmethod, classmethod, property)
_before: dict[tuple[str, str], Any] = {}
_kept: list[Any] = []


def remember() -> int:
    """Remember what stands where; return how many functions, classes and descriptors these are."""
    _make_optimizers()
    _before.clear()
    _before.update(_now())
    return len(_before)


def look() -> list[str]:
    """Return the names of those that are others now, or gone."""
    now = _now()
    return sorted(f"{owner}.{name}" for (owner, name), value in _before.items() if now.get((owner, name)) is not value)


def listed() -> tuple[int, list[str]]:
    """Return how many entry points the table has of those that are remembered, and the rows of which none is: their library is there."""
    seen = {row: 0 for row in TABLE if row.scope != ENGINE}
    for owner, name in _before:
        for row in rows_of(owner, name):
            if row in seen:
                seen[row] += 1
    absent = [row.owner for row, count in seen.items() if not count and row.owner in sys.modules and not row.owner.endswith("_to_fns")]
    return sum(seen.values()), absent


def unpicklable() -> list[str]:
    """Return the names of the table's functions that libraries cannot send to another process."""
    import cloudpickle

    found = []
    for row in TABLE:
        for name, value in _named(row):
            if isinstance(sys.modules.get(row.owner), ModuleType) and callable(value):
                try:
                    pickle.loads(cloudpickle.dumps(value))
                except Exception as error:
                    found.append(f"{row.owner}.{name}: {error!r}")
    return found


def replace() -> None:
    """Replace a function, as a run does."""
    _kept.append(builtins.open)
    builtins.open = lambda *args, **options: _kept[0](*args, **options)


def put_back() -> None:
    """Put it back."""
    builtins.open = _kept.pop()


def _make_optimizers() -> None:
    """Make one of each of PyTorch's optimizers: the first one of a class wraps the class's `step`, for good."""
    import torch

    for kind in torch.optim.Optimizer.__subclasses__():
        if kind.__module__.startswith("torch.optim"):
            kind([torch.zeros(2, 2, requires_grad=True)])  # type: ignore[call-arg]  # the base class wants defaults too


def _now() -> dict[tuple[str, str], Any]:
    owners = _owners()
    found = {
        (owner, name): value
        for owner, holder in owners
        for name, value in list(vars(holder).items())
        if isinstance(value, (*CODE, *WRAPPED))
    }
    return found | {(row.owner, name): value for row in TABLE for name, value in _named(row)}


def _named(row: Replaced) -> Iterator[tuple[str, Any]]:
    """Yield what a row of the table names, with its value, whatever that is: `torch._VF` has its functions from elsewhere."""
    module, _, kind = (row.owner, "", "") if row.owner in sys.modules else row.owner.rpartition(".")
    owner = sys.modules.get(module) if not kind else vars(sys.modules.get(module, row)).get(kind)
    if row.scope != ENGINE and owner is not None and not isinstance(owner, dict):
        for name in row.names.split():
            value = inspect.getattr_static(owner, name, None) if inspect.isclass(owner) else getattr(owner, name, None)
            if value is not None:
                yield name, value


def _owners() -> Iterator[tuple[str, Any]]:
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in LIBRARIES:
            yield name, module
            for value in list(vars(module).values()):
                if inspect.isclass(value) and value.__module__ == name:
                    yield owner_name(value), value
