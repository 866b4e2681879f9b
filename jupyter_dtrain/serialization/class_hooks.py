"""Classes whose making runs code of the user's: a metaclass that keeps a list of its classes, an ``__init_subclass__`` that registers them.

A class that arrives has been made already, where it comes from, and what the hooks have noted of that arrives as well. So it is made here
without them: each class would be registered a second time.
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
    """What of the user's runs when a class is made.

    Attributes
    ----------
    metaclass : type
        The nearest one in the metaclass's order of which none of it is.
    noting : tuple of type
        Bases with an ``__init_subclass__``.
    """

    metaclass: Any
    noting: tuple[type, ...]

    @classmethod
    def of(cls, kind: type) -> ClassHooks | None:
        """Return those of a class that is written by value, ``None`` where there are none."""
        noting = tuple(base for base in kind.__mro__[1:] if _HOOK in vars(base) and _is_users(base))
        metaclass = next(meta for meta in inspect.getmro(type(kind)) if not (_is_users(meta) and _makes(meta)))
        return cls(metaclass, noting) if noting or metaclass is not type(kind) else None

    def left_out(self, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return how to make the class without them, given of what cloudpickle would make it."""
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
    hooks = {kind: vars(kind)[_HOOK] for kind in noting if _HOOK in vars(kind)}  # one that is being read has none yet
    for kind in hooks:
        type.__setattr__(kind, _HOOK, classmethod(_nothing))
    try:
        yield
    finally:
        for kind, hook in hooks.items():
            type.__setattr__(kind, _HOOK, hook)


def _nothing(_kind: Any, /, **_: Any) -> None:
    pass
