"""Annotations that name what is not there: since Python 3.14 nobody minds until they are asked for, as cloudpickle does."""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType

EAGER = sys.version_info < (3, 14)
"""They are evaluated where they are written."""


def with_annotations(function: FunctionType) -> FunctionType:
    """Return `function`, or one like it whose annotations are texts if its own name what is not there."""
    if EAGER:
        return function
    try:
        function.__annotations__  # noqa: B018  # asked for, that is all
        return function
    except Exception:
        annotationlib = import_module("annotationlib")
        twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__type_params__"):
            setattr(twin, name, getattr(function, name))
        twin.__dict__.update(function.__dict__)
        twin.__annotations__ = annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        return twin
