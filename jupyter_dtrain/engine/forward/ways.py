"""The ways in which a model is called: in training or evaluation, with which flags.

What a ``forward`` does in evaluation, with ``forward(x, masked=True)`` or after ``model.mixes = True``, its first call in training does not
show. So the first call of each way is made as a model's first is, which tells whether samples depend on each other. Flags are what is true
or not, a word, or absent; numbers are none, as a step's may be another one in each call.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from torch import nn

from .cross_sample import has_others_code

_FLAGS = (bool, str, NoneType)
_MOST = 16
"""Ways of a model that are tried: with more of them a flag is none."""
_ABSENT = object()


class Settings:
    """Flags that have been set to something else on modules since the run began, outside of their calls."""

    def __init__(self) -> None:
        self._set: dict[tuple[int, str], Any] = {}
        self._now: tuple[Any, ...] = ()

    def now(self) -> tuple[Any, ...]:
        """Return them with their values."""
        return self._now

    def setting(self, module: nn.Module, name: str, value: Any) -> None:
        """Note that attribute `name` of `module` is about to be set to `value`."""
        if isinstance(value, _FLAGS) and name != "training":
            before = module.__dict__.get(name, _ABSENT)
            if isinstance(before, _FLAGS) and before != value:
                self._set[id(module), name] = value
                self._now = tuple(self._set.items())


class Ways:
    """The ways in which calls of one model have been made."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def is_known(self, module: nn.Module, given: Any, settings: tuple[Any, ...]) -> bool:
        """Return whether a first call like this one has been made, or need not be.

        Parameters
        ----------
        module : nn.Module
            The model.
        given : tuple
            Arguments and keyword arguments.
        settings : tuple
            As :meth:`Settings.now` returns.
        """
        way = _way(module, given, settings)
        if way in self._known or len(self._known) >= _MOST:
            return True
        if not has_others_code(module):
            self._known.add(way)
        return way in self._known

    def learn(self, module: nn.Module, given: Any, settings: tuple[Any, ...]) -> None:
        """Note that such a call has been made."""
        self._known.add(_way(module, given, settings))


def _way(module: nn.Module, given: Any, settings: tuple[Any, ...]) -> Any:
    args, kwargs = given
    return module.training, tuple(map(_flag, args)), tuple((name, _flag(value)) for name, value in kwargs.items()), settings


def _flag(value: Any) -> Any:
    return value if isinstance(value, _FLAGS) else type(value)
