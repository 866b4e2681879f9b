"""The wrapper with which a scheduler notes that its optimizer has stepped: in another process, that process's optimizer has one too.

A scheduler of PyTorch replaces its optimizer's ``step`` by the wrapper, and warns if it is missing when the scheduler steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any
from weakref import ref

from ..analysis.code_objects import closed_over


def reduced_step(function: FunctionType) -> Any:
    """Return the reduce value of a scheduler's wrapper of a step, ``None`` for any other function."""
    if not hasattr(function, "_wrapped_by_lr_sched"):
        return None
    optimizer = next((value() for value in closed_over(function) if isinstance(value, ref)), None)
    return None if optimizer is None else (tracked_step, (optimizer,))


def tracked_step(optimizer: Any) -> Callable[..., Any]:
    """Return what is to be the ``step`` of `optimizer` when a scheduler tracks it."""
    reference = ref(optimizer)  # PyTorch's does not keep the optimizer alive either

    @wraps(type(optimizer).step)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer: Any = reference()
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)  # may be patched while a cell runs

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step
