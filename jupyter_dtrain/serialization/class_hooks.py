"""Classes whose creation runs user code: a metaclass that keeps a list of its classes, an ``__init_subclass__`` that registers them.

The hooks have run where the class was defined, and what they recorded is sent along. The class is unpickled without running them, as
each class would otherwise be registered twice.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import cloudpickle

_MAKING = ("__new__", "__init__", "__prepare__")
_HOOK = "__init_subclass__"


@dataclass(frozen=True)
class ClassHooks:
    """The user's hooks that run when a class is made.

    Attributes
    ----------
    metaclass : type
        The first class in the metaclass's MRO that has no such hooks.
    noting : tuple of type
        Bases with an ``__init_subclass__`` of the user's.
    """

    metaclass: Any
    noting: tuple[type, ...]

    @classmethod
    def of(cls, kind: type) -> ClassHooks | None:
        """Return the hooks of a class that is pickled by value, ``None`` if there are none."""
        noting = tuple(base for base in kind.__mro__[1:] if _HOOK in vars(base) and _is_users(base))
        metaclass = next(meta for meta in inspect.getmro(type(kind)) if not (_is_users(meta) and _makes(meta)))
        return cls(metaclass, noting) if noting or metaclass is not type(kind) else None

    def left_out(self, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return function and arguments that make the class without its hooks, given cloudpickle's arguments for it."""
        return _make, (self.metaclass, self.noting, *arguments)


def _is_users(kind: type) -> bool:
    return not cloudpickle.cloudpickle._should_pickle_by_reference(kind)


def _makes(metaclass: type) -> bool:
    return any(isinstance(getattr(vars(metaclass).get(name), "__func__", vars(metaclass).get(name)), FunctionType) for name in _MAKING)


def _make(
    metaclass: Any,
    noting: Sequence[type],
    own_metaclass: Any,
    name: str,
    bases: tuple[type, ...],
    first: dict[str, Any],
    tracker_id: str | None,
    _extra: None,
) -> type:
    resolved = types.resolve_bases(bases)
    names = dict(first) if resolved is bases else {**first, "__orig_bases__": bases}
    with _silent(noting):
        made = metaclass.__new__(own_metaclass, name, resolved, names)
    found: type = cloudpickle.cloudpickle._lookup_class_or_track(tracker_id, made)
    return found


@contextmanager
def _silent(noting: Sequence[type]) -> Iterator[None]:
    hooks = {kind: vars(kind)[_HOOK] for kind in noting if _HOOK in vars(kind)}  # a class that is still being unpickled has no hook yet
    for kind in hooks:
        type.__setattr__(kind, _HOOK, classmethod(_nothing))
    try:
        yield
    finally:
        for kind, hook in hooks.items():
            type.__setattr__(kind, _HOOK, hook)


def _nothing(_kind: Any, /, **_: Any) -> None:
    pass
