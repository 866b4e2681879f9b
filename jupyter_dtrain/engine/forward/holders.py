"""What holds values that code binds anew: attributes of a module, and variables of a module, of a class or around a function."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from types import FunctionType
from typing import Any

from torch import nn

from ...serialization.python_reducers import SlotValues

MODULES_OWN = frozenset(vars(nn.Module()))
"""What PyTorch keeps of each module."""


def is_torchs(module: nn.Module) -> bool:
    """Return whether a module is a layer of PyTorch's own."""
    return type(module).__module__.startswith("torch.")


class ModuleAttributes(MutableMapping[str, Any]):
    """The attributes of a module that PyTorch does not keep for itself."""

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
    """Some of the variables of a module, of a class or around a function, which code binds anew.

    Parameters
    ----------
    owner : object
        Whose they are.
    names : iterable of str
    get : callable
        Returns the value of one of `names`, or raises ``KeyError``.
    put, drop : callable
        Bind one, and unbind it.
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
    """Return the globals of these names."""
    return Variables(namespace, names, get=namespace.__getitem__, put=namespace.__setitem__, drop=namespace.__delitem__)


def variables_of_class(kind: type) -> Variables:
    """Return the class attributes of a class of the user's that are data."""
    names = [name for name, value in vars(kind).items() if not name.startswith("__") and not is_code(value)]
    return Variables(
        kind, names, get=lambda name: vars(kind)[name], put=partial(type.__setattr__, kind), drop=partial(type.__delattr__, kind)
    )


def is_code(value: object) -> bool:
    """Return whether a value of a class or a module is a function, a class or the like."""
    return isinstance(value, FunctionType | classmethod | staticmethod | property | type) or hasattr(type(value), "__set__")


def variables_around(function: FunctionType, names: Iterable[str]) -> Variables:
    """Return the variables around a function that it binds (``nonlocal``)."""
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
