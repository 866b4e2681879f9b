"""Mappings over attributes and variables that code can rebind: of a module, a class, or a function's closure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from types import FunctionType
from typing import Any

from torch import nn

from ...serialization.python_reducers import SlotValues

MODULES_OWN = frozenset(vars(nn.Module()))
"""Attributes that PyTorch sets on every module."""


def is_torchs(module: nn.Module) -> bool:
    """Return whether the class of `module` is PyTorch's own."""
    return type(module).__module__.startswith("torch.")


class ModuleAttributes(MutableMapping[str, Any]):
    """The attributes of a module except those that PyTorch sets on every module."""

    def __init__(self, module: nn.Module) -> None:
        self.owner, self.is_torchs = module.__dict__, is_torchs(module)

    def __getitem__(self, name: str) -> Any:
        if name in MODULES_OWN:
            raise KeyError(name)
        return self.owner[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.owner[name] = value

    def __delitem__(self, name: str) -> None:
        del self.owner[name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.owner if name not in MODULES_OWN])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Variables(MutableMapping[str, Any]):
    """Some variables of a module, a class or a closure, as a mapping.

    Parameters
    ----------
    owner : object
        The namespace, class or closure that has the variables.
    names : iterable of str
    get : callable
        Returns the value of one of `names`, or raises ``KeyError``.
    put, drop : callable
        Bind and unbind a name.
    """

    def __init__(
        self,
        owner: object,
        names: Iterable[str],
        *,
        get: Callable[[str], Any],
        put: Callable[[str, Any], None],
        drop: Callable[[str], None],
    ) -> None:
        self.owner = owner
        self.names = list(names)
        self._get, self._put, self._drop = get, put, drop

    def __getitem__(self, name: str) -> Any:
        return self._get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._put(name, value)

    def __delitem__(self, name: str) -> None:
        self._drop(name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.names if self._has(name)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has(self, name: str) -> bool:
        try:
            self._get(name)
        except KeyError:
            return False
        return True


def globals_in(namespace: dict[str, Any], names: Iterable[str]) -> Variables:
    """Return the globals `names` of `namespace` as a mapping."""
    return Variables(namespace, names, get=namespace.__getitem__, put=namespace.__setitem__, drop=namespace.__delitem__)


def variables_of_class(kind: type) -> Variables:
    """Return the class attributes of `kind` that are data, as a mapping."""
    names = [name for name, value in vars(kind).items() if not name.startswith("__") and not is_code(value)]
    return Variables(
        kind, names, get=lambda name: vars(kind)[name], put=partial(type.__setattr__, kind), drop=partial(type.__delattr__, kind)
    )


def is_code(value: object) -> bool:
    """Return whether `value` is a function, class, descriptor or similar, rather than data."""
    return isinstance(value, FunctionType | classmethod | staticmethod | property | type) or hasattr(type(value), "__set__")


def variables_around(function: FunctionType, names: Iterable[str]) -> Variables:
    """Return the closure variables of `function` among `names` (``nonlocal``), as a mapping."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def get(name: str) -> Any:
        try:
            return cells[name].cell_contents
        except ValueError:
            raise KeyError(name) from None

    def put(name: str, value: Any) -> None:
        cells[name].cell_contents = value

    def drop(name: str) -> None:
        del cells[name].cell_contents

    return Variables(function.__closure__, [name for name in names if name in cells], get=get, put=put, drop=drop)


Holder = list[Any] | dict[Any, Any] | set[Any] | deque[Any] | SlotValues | ModuleAttributes | Variables
