"""Objects with ``__slots__``, objects made with arguments, and other Python objects that cloudpickle does not restore as they were."""

from __future__ import annotations

import copyreg
import importlib
import inspect
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from inspect import ismemberdescriptor
from types import CellType, CodeType, FunctionType
from typing import Any

import cloudpickle

from ..analysis.code_objects import original_code
from ..analysis.imports import brought


def slots_of(kind: type) -> Sequence[str]:
    """Return the names of all slots of objects of `kind`."""
    names: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]  # the list that pickle goes by
    # A subclass may hide a slot behind an attribute of the same name (`_raw_path` of paths in Python 3.13).
    return [name for name in names if ismemberdescriptor(getattr(kind, name, None))]


class SlotValues(MutableMapping[str, Any]):
    """The slots of an object as a mapping; slots without a value are left out."""

    def __init__(self, obj: object) -> None:
        self.obj = obj
        self._names = slots_of(type(obj))

    def __getitem__(self, name: str) -> Any:
        try:
            # Bypasses the object's own attribute lookup.
            return object.__getattribute__(self.obj, name) if name in self._names else _no(name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self.obj, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self.obj, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _no(name: str) -> Any:
    raise AttributeError(name)


def attribute_holders(obj: object) -> list[dict[str, Any] | SlotValues]:
    """Return the mappings with the attributes of `obj`: its dict, its slots, both, or neither."""
    own = getattr(obj, "__dict__", None)
    slots = slots_of(type(obj))
    return [*([own] if isinstance(own, dict) else []), *([SlotValues(obj)] if slots else [])]


# Objects whose class wants arguments, and classes that are not at their qualified name: pickle restores neither.
#
# Pickle calls ``__new__`` with the class alone, and finds a class by its qualified name.

_VALUES: tuple[Any, ...] = (float, int, str, tuple, bytes, complex, frozenset)
_OF_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def wants_arguments(kind: type) -> bool:
    """Return whether ``__new__`` of `kind` requires arguments that pickle does not know, for objects that have attributes only."""
    made = kind.__new__
    if not isinstance(made, FunctionType) or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return False
    wanted = list(inspect.signature(made).parameters.values())[1:]
    required = any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in wanted)
    return required and is_of_python(kind)


def is_of_python(kind: type) -> bool:
    """Return whether `kind` and all its bases are Python classes, so that ``object.__new__`` can make an instance."""
    return all(base is object or base.__flags__ & _OF_PYTHON for base in kind.__mro__)


def bare(kind: type) -> Any:
    """Return an instance of `kind` without attributes."""
    return object.__new__(kind)


def reduced_value(obj: Any) -> Any:
    """Return the reduce value of a number, text or tuple whose class takes other arguments than its value, which pickle would pass."""
    if not isinstance(obj, _VALUES):
        return NotImplemented
    kind: Any = type(obj)
    base: Any = next(base for base in _VALUES if isinstance(obj, base))
    made_by = next(parent for parent in kind.__mro__ if "__new__" in vars(parent))
    told_by = next((parent for parent in kind.__mro__ if "__getnewargs__" in vars(parent) or "__getnewargs_ex__" in vars(parent)), base)
    made_of_others = made_by is not told_by and issubclass(made_by, told_by)  # unlike a `namedtuple`, but like a class derived from one
    if not (made_of_others and isinstance(kind.__new__, FunctionType)):
        return NotImplemented
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not base.__reduce__ or kind in copyreg.dispatch_table:
        return NotImplemented
    value = (base.union(obj),) if base is frozenset else base.__getnewargs__(obj)
    return _value, (kind, base, *value), obj.__getstate__()


def _value(kind: Any, base: Any, *value: Any) -> Any:
    return base.__new__(kind, *value)


def reduced_renamed(obj: Any) -> Any:
    """Return the reduce value of a library's class that its module has under its name, not its qualified name: `SDPBackend`."""
    if not isinstance(obj, type):
        return NotImplemented
    kind: type = obj
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__qualname__ == kind.__name__ or kind.__module__ == "__main__":
        return NotImplemented
    held = vars(module)
    return (getattr, (module, kind.__name__)) if held.get(kind.__name__) is kind and kind.__qualname__ not in held else NotImplemented


# Container subclasses of the user's are pickled with their items and attributes, whatever their methods do (`container_reducers`).
#
# Python's own way calls the class with made-up arguments (``Meters(default_factory)``), which a user's ``__init__`` may not take, and
# loses the attributes of a ``defaultdict`` or ``Counter``.


# Objects of which each process has one: the global generators, the environment (`container_reducers`).
#
# ``from random import choice`` and ``from numpy.random import randn`` import bound methods of such generators. A copy would have a state of
# its own, which seeding the module does not reach.


# Annotations that name undefined things: since Python 3.14 they fail only when they are evaluated, as cloudpickle does.

EAGER = sys.version_info < (3, 14)
"""Whether annotations are evaluated at definition."""


def with_annotations(function: FunctionType) -> FunctionType:
    """Return `function`, or a copy with its annotations as strings if they cannot be evaluated."""
    if EAGER:
        return function
    try:
        function.__annotations__  # noqa: B018  # only to evaluate them
        return function
    except Exception:
        annotationlib = import_module("annotationlib")
        twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__type_params__"):
            setattr(twin, name, getattr(function, name))
        twin.__dict__.update(function.__dict__)
        twin.__annotations__ = annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        return twin


_FILENAME = 10  # index of the file name among the arguments of a code object


def reduced_code(code: CodeType) -> Any:
    """Return the reduce value of code: of the original if it was rewritten for a run, and with its file name.

    cloudpickle drops the file name since 3.1.3, but tracebacks, warnings and code rewriting find the source text by it.
    """
    code = original_code(code) or code
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, (*args[:_FILENAME], code.co_filename, *args[_FILENAME + 1 :])


# Functions made by a library (hooks, wrappers) that are not importable: they use the globals of the library's module.
#
# The globals tell which library: a wrapper of a notebook function carries that function's name and module.
#
# cloudpickle would copy the globals that such a function uses. A copy of a library's state (which outputs are being recorded, which
# context is open) is disconnected from that state, and some of it cannot be copied at all.


def reduced_library_function(function: Any) -> Any:
    """Return the reduce value of a function that a library has made, else ``NotImplemented``."""
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
