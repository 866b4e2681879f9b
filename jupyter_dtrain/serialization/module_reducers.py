"""Modules: pickled by name with the submodules that the code uses; modules of the notebook's folder by value."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from ..analysis.imports import brought


def is_dynamic(obj: object) -> bool:
    """Return whether this function, class or module is pickled by value."""
    return isinstance(obj, FunctionType | type | ModuleType) and not cloudpickle.cloudpickle._should_pickle_by_reference(obj)


@contextmanager
def by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Let cloudpickle pickle `modules` by value."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


class ModuleName(str):
    """Stands for the reader's module of this name, so that a module and its functions can be read in any order."""

    __slots__ = ()


def itself(obj: Any) -> Any:
    """Return `obj`: reduce function for an object that is replaced by another one."""
    return obj


_MODULE_OWN = frozenset({"__builtins__", "__cached__", "__loader__", "__spec__"})  # attributes that the importing process sets


def _update_module(module: ModuleType, state: dict[str, Any]) -> None:
    vars(module).update(state)


def reduced_python_module(module: ModuleType, words: Collection[str]) -> Any:
    """Return the reduce value of a module; submodules whose names are in `words` are imported with it."""
    name = module.__name__
    if is_dynamic(module):
        state = {key: value for key, value in vars(module).items() if key not in _MODULE_OWN}
        return itself, (ModuleName(name),), state, None, None, _update_module
    if not words:
        return _import, (name, [])
    return _import, (name, [other for other, path in _submodules(name, len(sys.modules)) if all(part in words for part in path)])


@lru_cache(maxsize=256)
def _submodules(name: str, _: int) -> list[tuple[str, list[str]]]:
    """Return a package's imported submodules with the parts of their names after its own; cached per number of modules."""
    return [(other, other[len(name) + 1 :].split(".")) for other in sys.modules.copy() if other.startswith(name + ".")]


def _import(name: str, submodules: Sequence[str]) -> ModuleType:
    with brought():
        for submodule in submodules:
            try:
                importlib.import_module(submodule)
            except ImportError:  # the word names an attribute, not a submodule
                pass
        return importlib.import_module(name)
