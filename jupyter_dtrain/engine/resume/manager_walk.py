"""What the code that enters a context manager can reach: its arguments, and the attributes, globals and modules that it names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ...analysis import code_objects
from ...serialization.copy_restore import attributes_of
from ...serialization.iterators import is_iterator
from ...serialization.library_changes import EVERYBODYS
from ..forward.holders import MODULES_OWN
from ..forward.reached import Walk
from ..identity_map import cached_by_class
from ..tensor.placement_types import GlobalTensor
from ..user_frames import is_users_module

GENERATORS = contextlib._GeneratorContextManager
_OF_PROCESS = EVERYBODYS | sys.stdlib_module_names


def is_of_process(manager: object) -> bool:
    """Return whether `manager` is one of PyTorch, NumPy or Python that saves settings or random streams of the process."""
    home = home_of(manager)
    package = home.partition(".")[0]
    return not is_users_module(home) and package in _OF_PROCESS and package != "unittest"


def home_of(manager: object) -> str:
    """Return the module of the code that runs when `manager` is entered."""
    return str((manager.func if isinstance(manager, GENERATORS) else type(manager)).__module__)


class ManagerWalk(Walk):
    """Finds what the code that enters a manager can reach.

    Parameters
    ----------
    manager : context manager
    namespace : dict
        The notebook's namespace.

    Attributes
    ----------
    held : list of object
        The objects that it reaches and that may change.
    names : set of str
        Names of the notebook that the code uses.
    modules : set of str
        Packages whose modules or functions it uses.
    """

    def __init__(self, manager: Any, namespace: dict[str, Any]) -> None:
        self.names: set[str] = set()
        self.modules: set[str] = set()
        self.held: list[Any] = []
        self._kept: set[int] = set()
        self._manager, self._namespace = manager, namespace
        super().__init__([manager])

    def _look(self, value: Any) -> Iterable[Any]:
        if value is self._manager:
            return self._of_manager(value)
        if isinstance(value, ModuleType):
            return ()
        if isinstance(value, Optimizer):
            self._keep(value)
            return (value.param_groups,)
        found = super()._look(value)
        self._keep(value)
        return found

    def _keep(self, value: Any) -> None:
        if id(value) in self._kept:
            return
        self._kept.add(id(value))
        code = isinstance(value, FunctionType | CodeType | staticmethod | classmethod | property) or callable(
            getattr(value, "__wrapped__", None)
        )
        if code or is_iterator(value) or isinstance(value, GlobalTensor | tuple | frozenset):
            return
        if isinstance(value, type) and value.__module__ != "__main__" and not _is_others(value.__module__):
            return
        self.held.append(value)

    def _of_manager(self, manager: Any) -> Iterable[Any]:
        if isinstance(manager, GENERATORS):
            return [manager.func, *manager.args, *manager.kwds.values()]
        self._keep(manager)
        kind: Any = type(manager)
        words = _words(kind)
        own = attributes_of(manager) or {}
        parts = [value for name, value in own.items() if name in words]
        kinds = [kind for kind in type(manager).__mro__ if kind is not object]
        code = [vars(kind)[name] for kind in kinds for name in words if name in vars(kind)]
        return [*parts, *code, *kinds]

    def _of_module(self, module: nn.Module) -> Iterable[Any]:
        members = [value for name, value in vars(module).items() if name in MODULES_OWN and isinstance(value, dict)]  # hooks, too
        return [*super()._of_module(module), *members]

    def _of_class(self, kind: type) -> Iterable[Any]:
        if kind in type(self._manager).__mro__:
            return ()  # of its code, what entering it uses
        return super()._of_class(kind)

    def _of_function(self, function: FunctionType) -> Iterable[Any]:
        found = [*super()._of_function(function), *code_objects.closed_over(function)]
        names = _names_in(function.__code__)
        if function.__globals__ is self._namespace:
            self.names.update(names)
        if _is_others(function.__module__):
            self._keep_module(sys.modules.get(function.__module__))
            found += [value for name in names if not _is_code(value := function.__globals__.get(name))]
        for name in names:
            module = function.__globals__.get(name)
            if isinstance(module, ModuleType):
                self.modules.add(module.__name__.partition(".")[0])
            elif callable(module):
                self.modules.add(str(getattr(module, "__module__", "")).partition(".")[0] or "builtins")
            if isinstance(module, ModuleType) and _is_others(module.__name__):
                self._keep_module(module)
                found += [vars(module)[other] for other in names if other in vars(module)]
        return found

    def _keep_module(self, module: ModuleType | None) -> None:
        if module is not None:
            self._keep(module)


def _is_others(module: str | None) -> bool:
    """Return whether a module is a library's, with no state of the process."""
    home = str(module)
    return home != "__main__" and home.partition(".")[0] not in _OF_PROCESS


def _is_code(value: object) -> bool:
    return isinstance(value, FunctionType | type | ModuleType) or value is None


@lru_cache(512)
def _names_in(code: CodeType) -> frozenset[str]:
    return frozenset(code_objects.names_in(code))


@cached_by_class
def _words(kind: Any) -> frozenset[str]:
    """Return the names that the code that enters a manager of class `kind` uses."""
    words: set[str] = {"__enter__"}
    pending = ["__enter__"]
    while pending:
        name = pending.pop()
        function = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        if isinstance(function, property):
            function = function.fget
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None:
            new = set(_names_in(code)) - words
            words |= new
            pending += new
    return frozenset(words)
