"""References to functions and classes that are replaced during a run: pickled as the originals, found by name."""

from __future__ import annotations

import sys
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any


def named(obj: object, value: Any) -> Any:
    """Return a reduce value that finds `value` by the name under which `obj` is now; otherwise it would be pickled by value."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    names = [getattr(value, attribute, "") for attribute in ("__qualname__", "__name__")]  # `random.seed` is a bound method
    return next(((getattr, (module, name)) for name in names if getattr(module, name, None) is obj), None)


def is_found_by_name(method: MethodType) -> bool:
    """Return whether a class method is the one that its class has under that name."""
    found, original = getattr(method.__self__, method.__name__, None), stands_for(method.__func__)
    if isinstance(found, BuiltinMethodType):  # since PyTorch 2.15 `apply` is one
        return original is not None
    return isinstance(found, MethodType) and found.__func__ in (method.__func__, original)


def stands_for(obj: object) -> Any:
    """Return the function or class that `obj`, a replacement of this project's, stands for during a run; ``None`` if it is none.

    If a replacement wraps another one, the innermost original is returned.
    """
    found = None
    while (behind := _behind(obj)) is not None:
        found = obj = behind
    return found


def _behind(obj: object) -> Any:
    if isinstance(obj, FunctionType):
        ours = str(obj.__globals__.get("__name__")).startswith(_OURS)
    else:
        ours = isinstance(obj, type) and str(type(obj).__module__).startswith(_OURS)  # a metaclass written in C has a descriptor here
    return vars(obj).get("__wrapped__") if ours else None


_OURS = f"{__name__.partition('.')[0]}."
