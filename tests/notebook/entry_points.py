"""What stands where in the libraries of a process: compared on engines before and after a run."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

LIBRARIES = frozenset(
    {"torch", "numpy", "random", "builtins", "os", "io", "posix", "tempfile", "shutil", "warnings", "logging", "threading", "pathlib"}
    | {"subprocess", "multiprocessing", "contextlib", "time", "signal", "IPython", "pickle", "copy", "functools", "matplotlib", "mlflow"}
)
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
    return {
        (owner, name): value
        for owner, holder in owners
        for name, value in list(vars(holder).items())
        if isinstance(value, (*CODE, *WRAPPED))
    }


def _owners() -> Iterator[tuple[str, Any]]:
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in LIBRARIES:
            yield name, module
            for value in list(vars(module).values()):
                if inspect.isclass(value) and value.__module__ == name:
                    yield f"{name}.{value.__qualname__}", value
