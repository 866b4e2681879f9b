"""Functions that a library has made (hooks, wrappers), which no name leads to: they use the globals of the library's module.

Which library that is, their globals say: a wrapper around a function of the notebook calls itself by that one's name and module.

cloudpickle writes such a function with copies of what it uses. A copy of a library's state (which outputs are being recorded, which context
is open) is not that state, and some of it cannot be copied at all.
"""

from __future__ import annotations

import importlib
import sys
from types import CellType, CodeType, FunctionType
from typing import Any

import cloudpickle

from .annotations import with_annotations
from .imports import brought


def reduced_library_function(function: Any) -> Any:
    """Return how `function` reduces if it is a function that a library has made, else ``NotImplemented``."""
    if type(function) is not FunctionType:
        return NotImplemented
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    by_name = cloudpickle.cloudpickle._should_pickle_by_reference
    if module is None or name == "__main__" or vars(module) is not function.__globals__ or not by_name(module):
        return NotImplemented
    if getattr(module, "__spec__", None) is None or by_name(function):
        return NotImplemented
    attributes, own = cloudpickle.cloudpickle._function_getstate(with_annotations(function))
    state = attributes, own | {"__globals__": {}}
    args = name, function.__code__, len(function.__code__.co_freevars)
    return _function_of, args, state, None, None, cloudpickle.cloudpickle._function_setstate


def _function_of(module: str, code: CodeType, num_cells: int) -> FunctionType:
    with brought():
        names = vars(importlib.import_module(module))
    return FunctionType(code, names, None, None, tuple(CellType() for _ in range(num_cells)))
