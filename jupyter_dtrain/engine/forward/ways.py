"""The ways in which a model is called: in training or evaluation, and with which flags.

A model's first call, in training, does not show what its ``forward`` does in evaluation, with ``forward(x, masked=True)`` or after
``model.mixes = True``. Therefore the first call of each way is checked like the model's first call, which finds out whether samples depend
on each other. Flags are booleans, strings and ``None``. Numbers are not flags, since a step number may differ in each call.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from torch import nn

from .cross_sample import has_others_code

_FLAGS = (bool, str, NoneType)
_MOST = 16
"""Most ways that are checked for each model; later flags are ignored."""
_ABSENT = object()


class Settings:
    """Flags of modules that were changed during the run, outside of the modules' calls."""

    def __init__(self) -> None:
        self._set: dict[tuple[int, str], Any] = {}
        self._now: tuple[Any, ...] = ()

    def now(self) -> tuple[Any, ...]:
        """Return the changed flags with their values."""
        return self._now

    def setting(self, module: nn.Module, name: str, value: Any) -> None:
        """Record that attribute `name` of `module` is about to be set to `value`."""
        if isinstance(value, _FLAGS) and name != "training":
            before = module.__dict__.get(name, _ABSENT)
            if isinstance(before, _FLAGS) and before != value:
                self._set[id(module), name] = value
                self._now = tuple(self._set.items())


class Ways:
    """The ways in which one model has been called."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def is_known(self, module: nn.Module, given: Any, settings: tuple[Any, ...]) -> bool:
        """Return whether a call in this way has been checked, or need not be.

        Parameters
        ----------
        module : nn.Module
            The model.
        given : tuple
            Arguments and keyword arguments.
        settings : tuple
            As returned by :meth:`Settings.now`.
        """
        way = _way(module, given, settings)
        if way in self._known or len(self._known) >= _MOST:
            return True
        if not has_others_code(module):
            self._known.add(way)
        return way in self._known

    def learn(self, module: nn.Module, given: Any, settings: tuple[Any, ...]) -> None:
        """Record that a call in this way has been checked."""
        self._known.add(_way(module, given, settings))


def _way(module: nn.Module, given: Any, settings: tuple[Any, ...]) -> Any:
    args, kwargs = given
    return module.training, tuple(map(_flag, args)), tuple((name, _flag(value)) for name, value in kwargs.items()), settings


def _flag(value: Any) -> Any:
    return value if isinstance(value, _FLAGS) else type(value)
