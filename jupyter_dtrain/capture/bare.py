"""Objects whose class wants arguments to make them, and classes that are elsewhere than they say: pickle would not find its way to either.

Pickle makes an object by calling ``__new__`` with the class alone, and finds a class by its qualified name.
"""

from __future__ import annotations

import copyreg
import inspect
import sys
from types import FunctionType
from typing import Any

_VALUES: tuple[Any, ...] = (float, int, str, tuple, bytes, complex, frozenset)
_OF_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def wants_arguments(kind: type) -> bool:
    """Return whether objects of `kind` are made of arguments that pickle does not know, and have nothing but attributes."""
    made = kind.__new__
    if not isinstance(made, FunctionType) or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return False
    wanted = list(inspect.signature(made).parameters.values())[1:]
    required = any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in wanted)
    return required and is_of_python(kind)


def is_of_python(kind: type) -> bool:
    """Return whether `kind` and all that it is made from are classes in Python, so that ``object`` can make one."""
    return all(base is object or base.__flags__ & _OF_PYTHON for base in kind.__mro__)


def bare(kind: type) -> Any:
    """Return an object of `kind` without attributes."""
    return object.__new__(kind)


def reduced_value(obj: Any) -> Any:
    """Return how a number, a text, a tuple of a class reduces that makes it of other arguments than its value, which pickle would pass."""
    if not isinstance(obj, _VALUES):
        return NotImplemented
    kind: Any = type(obj)
    base: Any = next(base for base in _VALUES if isinstance(obj, base))
    made_by = next(parent for parent in kind.__mro__ if "__new__" in vars(parent))
    told_by = next((parent for parent in kind.__mro__ if "__getnewargs__" in vars(parent) or "__getnewargs_ex__" in vars(parent)), base)
    made_of_others = made_by is not told_by and issubclass(made_by, told_by)  # unlike a `namedtuple`, like a class made from one
    if not (made_of_others and isinstance(kind.__new__, FunctionType)):
        return NotImplemented
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not base.__reduce__ or kind in copyreg.dispatch_table:
        return NotImplemented
    value = (base.union(obj),) if base is frozenset else base.__getnewargs__(obj)
    return _value, (kind, base, *value), obj.__getstate__()


def _value(kind: Any, base: Any, *value: Any) -> Any:
    return base.__new__(kind, *value)


def reduced_exception(obj: Any) -> Any:
    """Return how an exception of a class reduces that is made of other arguments than it passes on: it would be made of the latter."""
    kind: Any = type(obj)
    if not isinstance(obj, BaseException) or kind.__reduce__ is not BaseException.__reduce__ or not isinstance(kind.__init__, FunctionType):
        return NotImplemented
    base = next(base for base in kind.__mro__ if not base.__flags__ & _OF_PYTHON)
    return _exception, (kind, base, obj.args), vars(obj) or None


def _exception(kind: Any, base: Any, args: tuple[Any, ...]) -> Any:
    made = base.__new__(kind, *args)
    base.__init__(made, *args)
    return made


def reduced_renamed(obj: Any) -> Any:
    """Return how a class of a library reduces that is in its module under its name and not under its qualified name: `SDPBackend`."""
    if not isinstance(obj, type):
        return NotImplemented
    kind: type = obj
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__qualname__ == kind.__name__ or kind.__module__ == "__main__":
        return NotImplemented
    held = vars(module)
    return (getattr, (module, kind.__name__)) if held.get(kind.__name__) is kind and kind.__qualname__ not in held else NotImplemented
