"""What a function or class is found by where it arrives: its name, or what stands for it."""

from __future__ import annotations

import sys
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any


def named(obj: object, value: Any) -> Any:
    """Return how `value` is found by its name, under which `obj` is now: it would be taken for one without, and copied."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    names = [getattr(value, attribute, "") for attribute in ("__qualname__", "__name__")]  # `random.seed` is a method of something
    return next(((getattr, (module, name)) for name in names if getattr(module, name, None) is obj), None)


def is_found_by_name(method: MethodType) -> bool:
    """Return whether a method of a class is found there by its name."""
    found, original = getattr(method.__self__, method.__name__, None), stands_for(method.__func__)
    if isinstance(found, BuiltinMethodType):  # since PyTorch 2.15 `apply` is one
        return original is not None
    return isinstance(found, MethodType) and found.__func__ in (method.__func__, original)


def stands_for(obj: object) -> Any:
    """Return the function or class that `obj`, one of this project's, takes the place of during a run; ``None`` if it does not.

    Where two of ours stand before it, one in the place of the other, it is what both do so for.
    """
    found = None
    while (behind := _behind(obj)) is not None:
        found = obj = behind
    return found


def _behind(obj: object) -> Any:
    if isinstance(obj, FunctionType):
        ours = str(obj.__globals__.get("__name__")).startswith(_OURS)
    else:
        ours = isinstance(obj, type) and str(type(obj).__module__).startswith(_OURS)  # a metaclass in C has a descriptor there
    return vars(obj).get("__wrapped__") if ours else None


_OURS = f"{__name__.partition('.')[0]}."
