"""Modules: written by name with the submodules that the code uses, those of the notebook's own by value."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from ..analysis.imports import brought


def is_dynamic(obj: object) -> bool:
    """Return whether this function, class or module is written by value."""
    return isinstance(obj, FunctionType | type | ModuleType) and not cloudpickle.cloudpickle._should_pickle_by_reference(obj)


class ModuleName(str):
    """Stands for the reader's module of this name: its functions and itself may be read in any order."""

    __slots__ = ()


def itself(obj: Any) -> Any:
    """Return `obj`: what is written in place of another object stands for itself."""
    return obj


_MODULE_OWN = frozenset({"__builtins__", "__cached__", "__loader__", "__spec__"})  # of a module that was imported here


def _update_module(module: ModuleType, state: dict[str, Any]) -> None:
    vars(module).update(state)


def reduced_python_module(module: ModuleType, words: Collection[str]) -> Any:
    """Return how a module reduces; `words`: submodules of these names are imported with it."""
    name = module.__name__
    if is_dynamic(module):
        state = {key: value for key, value in vars(module).items() if key not in _MODULE_OWN}
        return itself, (ModuleName(name),), state, None, None, _update_module
    if not words:
        return _import, (name, [])
    return _import, (name, [other for other, path in _submodules(name, len(sys.modules)) if all(part in words for part in path)])


@lru_cache(maxsize=256)
def _submodules(name: str, _: int) -> list[tuple[str, list[str]]]:
    """Return the submodules of a package that are imported, with the parts of their names behind its own; for a number of modules."""
    return [(other, other[len(name) + 1 :].split(".")) for other in sys.modules.copy() if other.startswith(name + ".")]


def _import(name: str, submodules: Sequence[str]) -> ModuleType:
    with brought():
        for submodule in submodules:
            try:
                importlib.import_module(submodule)
            except ImportError:  # an attribute only looks like it
                pass
        return importlib.import_module(name)
