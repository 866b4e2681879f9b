"""The ways in which a model is called: in training or evaluation, and with which flags.

A model's first call, in training, does not show what its ``forward`` does in evaluation, with ``forward(x, masked=True)`` or after
``model.mixes = True``. Therefore the first call of each way is checked like the model's first call, which finds out whether samples depend
on each other. Flags are booleans, strings and ``None``. Numbers among the arguments are not flags, since a step number may differ in each
call. Of other attributes that the cell sets, and of changes to a model's code (`code_changes`), the first few make ways. So does a batch of
twice the size of those before, because a few samples show less of a model.
"""

from __future__ import annotations

from collections import Counter
from types import NoneType
from typing import Any

import torch
from torch import nn

from .cross_sample import goes_along_a_dim, has_others_code
from .holders import is_torchs

_FLAGS = (bool, str, NoneType)
_NUMBERS = (int, float)
_MOST = 64
"""Most ways that are checked for each model; later flags are ignored."""
_MOST_CHANGES = 4
"""Most changes of an attribute that are checked, but for flags; one that changes more often counts or keeps something."""
_ABSENT = object()


class Settings:
    """Attributes of modules that were changed during the run, outside of the modules' calls."""

    def __init__(self) -> None:
        self._set: dict[tuple[int, str], Any] = {}
        self._num_changes: Counter[tuple[int, str]] = Counter()
        self._now: tuple[Any, ...] = ()

    def now(self) -> tuple[Any, ...]:
        """Return the changed attributes with their values, of objects numbers."""
        return self._now

    def setting(self, module: nn.Module, name: str, value: Any) -> None:
        """Record that attribute `name` of `module` is about to be set to `value`."""
        if name == "training" or isinstance(value, torch.Tensor | nn.Module) or (name.startswith("_") and is_torchs(module)):
            return
        before = _attribute(module, name)
        plain = (*_FLAGS, *_NUMBERS)
        if before is _ABSENT or before is value or (isinstance(before, plain) and isinstance(value, plain) and before == value):
            return
        key = id(module), name
        self._num_changes[key] += not (isinstance(before, _FLAGS) and isinstance(value, _FLAGS))
        if self._num_changes[key] > _MOST_CHANGES:
            self._set.pop(key, None)
        else:
            self._set[key] = value if isinstance(value, plain) else self._num_changes[key]
        self._now = tuple(self._set.items())


def _attribute(module: nn.Module, name: str) -> Any:
    for attributes in (module.__dict__, module.__dict__.get("_modules", {})):
        if name in attributes:
            return attributes[name]
    return getattr(type(module), name, _ABSENT)


class Ways:
    """The ways in which one model has been called."""

    def __init__(self) -> None:
        self._known: set[Any] = set()
        self._settings: set[Any] = set()

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
        if not has_others_code(module) and (settings in self._settings or not goes_along_a_dim(module)):
            self._known.add(way)
        return way in self._known

    def learn(self, module: nn.Module, given: Any, settings: tuple[Any, ...]) -> None:
        """Record that a call in this way has been checked."""
        self._known.add(_way(module, given, settings))
        self._settings.add(settings)


def _way(module: nn.Module, given: Any, settings: tuple[Any, ...]) -> Any:
    args, kwargs = given
    return module.training, tuple(map(_flag, args)), tuple((name, _flag(value)) for name, value in kwargs.items()), settings


def _flag(value: Any) -> Any:
    kind = type(value)
    return value if isinstance(value, _FLAGS) else (kind, type(kind))  # the type of global tensors is equal to that of plain ones
