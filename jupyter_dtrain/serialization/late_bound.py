"""Late binding of functions that are replaced during a run, where the notebook refers to them: in a dict, as a default, in a class.

On engines, functions that write, move or remove files or read the clock are replaced for the time of a run (``engine/side_effects``). A
reference to one unpickles there as a function that looks the name up at each call. In other processes it unpickles as the function itself.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import time
from collections.abc import Callable
from functools import cache, wraps
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

_NAMES = (
    (io, "open"),
    *((os, name) for name in ("mkdir", "remove", "unlink", "rmdir", "rename", "replace")),
    *((shutil, name) for name in ("rmtree", "copyfile", "copy", "copy2")),
    *((torch, name) for name in ("save", "load")),
    *((time, name) for kind in ("time", "perf_counter", "monotonic", "process_time") for name in (kind, f"{kind}_ns")),
)
_FOUND: dict[Any, tuple[str, str]] = {getattr(module, name): (module.__name__, name) for module, name in _NAMES}


class LateBuiltin:
    """Wrapper for a function written in C, which as a class attribute does not bind as a method."""

    __slots__ = ("__wrapped__", "_module", "_name")

    def __init__(self, original: Callable[..., Any], module: ModuleType, name: str) -> None:
        self.__wrapped__, self._module, self._name = original, module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the current function of this name."""
        return getattr(self._module, self._name)(*args, **kwargs)

    def __reduce__(self) -> Any:
        return late_bound, (self._module.__name__, self._name)


class _Process:
    """State of this process: whether it is an engine."""

    is_engine = False


def bind_late() -> None:
    """Bind functions late that are unpickled in this process, an engine, from now on."""
    _Process.is_engine = True


def reduced_late(obj: object) -> Any:
    """Return the reduce value of `obj` if it is one of these functions, else ``NotImplemented``."""
    found = _FOUND.get(obj) if isinstance(obj, FunctionType | BuiltinFunctionType) else None
    return NotImplemented if found is None else (late_bound, found)


def late_bound(module: str, name: str) -> Any:
    """Return the function, or on an engine the late-bound wrapper of it."""
    owner = importlib.import_module(module)
    return _late(owner, name) if _Process.is_engine else getattr(owner, name)


@cache
def _late(owner: ModuleType, name: str) -> Any:
    original = next(function for function, found in _FOUND.items() if found == (owner.__name__, name))
    if isinstance(original, BuiltinFunctionType):
        return LateBuiltin(original, owner, name)

    @wraps(original)
    def late(*args: Any, **kwargs: Any) -> Any:
        return getattr(owner, name)(*args, **kwargs)

    return late
