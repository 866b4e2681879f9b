"""Context managers around the position of a run: the state that they find when they are entered, restored where a run resumes.

A run that resumes inside a ``with`` block enters the manager again. ``with override(gain=2.0)`` saves what it finds, and restores it in
the end. After a loss, it must not find what it has set itself, nor what the block has changed since. So the state that a manager can reach
is recorded when it is entered. A snapshot has the part that differs by then, and this is restored while the manager is entered again.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd import profiler
from torch.nn.parameter import is_lazy

from ...capture.process_state import ProcessSettings
from ...capture.random_state import RandomState
from ...serialization.copy_restore import ABSENT, Contents, attributes_of, restore
from .found_state import Found, Part, copy_of, same_parts
from .manager_walk import GENERATORS, ManagerWalk, home_of, is_of_process

_NEUTRAL = frozenset(
    (
        *(torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled, torch.autocast, torch.cuda.amp.autocast),
        *(profiler.record_function, contextlib.nullcontext, contextlib.suppress, contextlib.closing),
        *(io.TextIOWrapper, io.BufferedReader, io.BufferedWriter),
    )
)
"""Classes of managers that only set a mode of PyTorch, which is not active before they are entered, or have a file."""
_DRAW_NOTHING = frozenset(
    ("builtins", "collections", "contextlib", "copy", "functools", "itertools", "json", "logging", "math", "pathlib", "time", "tqdm")
)
_SET_NOTHING = _DRAW_NOTHING - {"logging"} | {"random"}
_OF_NO_LIBRARY = sys.stdlib_module_names | {"torch", "numpy"}
_ROOM = 1 << 28  # bytes of tensors and arrays of which copies are made for one manager


def is_neutral(manager: object) -> bool:
    """Return whether entering `manager` a second time is the same as entering it once."""
    return type(manager) in _NEUTRAL


@dataclass(frozen=True)
class Recipe:
    """A manager that can be entered again.

    Attributes
    ----------
    make : callable
    args : tuple
        Arguments of `make`; for a generator's manager, its function and its arguments.
    contents : Contents, optional
        The state of the manager itself before it was entered.
    """

    make: Callable[..., Any]
    args: tuple[Any, ...]
    contents: Contents | None = None

    def now(self) -> list[tuple[Any, Contents]]:
        """Return the present state of the manager itself."""
        if self.contents is None:
            return []
        manager = self.make(*self.args)
        return [(manager, same_parts(self.contents, None, attributes_of(manager)))]

    def manager(self) -> Any:
        """Return the manager as it was."""
        made = self.make(*self.args)
        if self.contents is not None:
            restore(made, replace(self.contents, attributes=dict(self.contents.attributes)))
        return made


def _itself(manager: Any) -> Any:
    return manager


class Watched:
    """The state that a manager can reach, before it is entered.

    Parameters
    ----------
    manager : context manager
    namespace : dict
        The notebook's namespace.
    """

    def __init__(self, manager: Any, namespace: dict[str, Any]) -> None:
        self._manager = manager
        self._made_of: tuple[Any, ...] | None = None
        if isinstance(manager, GENERATORS):  # which forget that when they are entered
            self._made_of = type(manager), manager.func, manager.args, manager.kwds
        self._parts: list[Part] = []
        self._large: list[tuple[torch.Tensor, tuple[Any, ...]]] = []
        self._names: dict[str, Any] = {}
        self._before: Part | None = None
        modules = {home_of(manager).partition(".")[0]}
        if not is_of_process(manager):
            walk = ManagerWalk(manager, namespace)
            self._names = {name: namespace.get(name, ABSENT) for name in walk.names}
            modules = walk.modules
            room = _ROOM
            for obj in walk.held:
                size = _num_bytes(obj)
                if size is None or size > room:
                    self._large.append((obj, _version(obj)))
                    continue
                room -= size
                part = Part(obj, copy_of(obj), attributes_of(obj))
                if obj is manager:
                    self._before = part
                else:
                    self._parts.append(part)
        # Both take their time; code that has a word of no module but some changes none.
        self._of_libraries = not modules <= _OF_NO_LIBRARY
        self._settings = None if modules <= _SET_NOTHING else ProcessSettings.now(of_libraries=self._of_libraries)
        self._random_state = None if modules <= _DRAW_NOTHING else RandomState.now()

    def has_changed_too_much(self) -> bool:
        """Return whether something has changed that was not copied."""
        return any(_version(obj) != version for obj, version in self._large)

    def found(self, namespace: dict[str, Any]) -> Found:
        """Return the state that has changed since the manager was entered, as it was then."""
        contents = [(part.obj, before) for part in self._parts if (before := part.before()) is not None]
        names = {name: value for name, value in self._names.items() if namespace.get(name, ABSENT) is not value}
        old = {name: value for name, value in names.items() if value is not ABSENT}
        settings = self._settings and self._settings.changed_from(ProcessSettings.now(of_libraries=self._of_libraries))
        return Found(contents, Contents(None, old, [name for name in names if name not in old]), settings, self._random_state)

    def recipe(self) -> Recipe | None:
        """Return how to make the manager again; ``None``: evaluate its expression."""
        if self._made_of is not None:
            return Recipe(_generator_manager, self._made_of)
        return None if self._before is None else Recipe(_itself, (self._manager,), self._before.before())


def _generator_manager(kind: Any, func: Any, args: Any, kwds: Any) -> Any:
    return kind(func, args, kwds)


def _num_bytes(obj: Any) -> int | None:
    """Return the size of a copy in bytes; ``None`` if it cannot be copied, such as a parameter without a shape."""
    if isinstance(obj, torch.Tensor):
        plain = type(obj) in (torch.Tensor, nn.Parameter) and obj.layout == torch.strided and not (obj.is_meta or obj.is_nested)
        return obj.nbytes if plain else None
    return obj.nbytes if isinstance(obj, np.ndarray) else 0


def _version(obj: Any) -> tuple[Any, ...]:
    counts = isinstance(obj, torch.Tensor) and not is_lazy(obj) and not obj.is_inference()
    return (obj._version, tuple(obj.shape)) if counts else (0,)


@dataclass(frozen=True)
class Kept:
    """A value that may be missing in a snapshot, and is made again then."""

    value: Any


def is_found(name: str) -> bool:
    """Return whether a key of a snapshot's values is of state that a manager found."""
    return name.startswith("found ")
