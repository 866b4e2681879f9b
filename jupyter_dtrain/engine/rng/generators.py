"""Find the random generators that an object holds or its code uses, and get and set their states."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from ...analysis.code_objects import closed_over, names_in
from ...serialization.python_reducers import attribute_holders
from ...serialization.seed_sequences import num_spawned, sequence_of, set_num_spawned
from ..user_frames import is_users, is_users_module

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, np.random.SeedSequence, random.Random)
_SPAWNED = "num_spawned"
_PLAIN = (int, float, str, bytes, type(None), ModuleType, torch.Tensor, np.ndarray)
_DEPTH, _WIDTH, _MOST = 8, 64, 2000


def state_of(generator: object) -> Any:
    """Return the state of a random generator (PyTorch, NumPy or Python) or a seed sequence, ``None`` for any other object."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            spawned = {} if (sequence := sequence_of(generator)) is None else {_SPAWNED: num_spawned(sequence)}
            return {**generator.bit_generator.state, **spawned}  # NumPy ignores the last one when it is set
        case np.random.RandomState():
            return generator.get_state()
        case np.random.SeedSequence():
            return num_spawned(generator)
        case random.Random():
            return generator.getstate()
    return None


def set_state(generator: Any, state: Any) -> None:
    """Set the state of a random generator to one that :func:`state_of` has returned."""
    match generator:
        case np.random.Generator():
            generator.bit_generator.state = state
            if _SPAWNED in state and (sequence := sequence_of(generator)) is not None:
                set_num_spawned(sequence, state[_SPAWNED])
        case np.random.SeedSequence():
            set_num_spawned(generator, state)
        case random.Random():
            generator.setstate(state)
        case _:
            generator.set_state(state)


def generators_in(value: object) -> list[Any]:
    """Return the generators among an object, its parts, and the variables that the user's functions in it use.

    The search is bounded in depth and in the number of objects: generators deep inside large containers are not found.
    """
    found: list[Any] = []
    seen: set[int] = set()
    level = [value]
    for _ in range(_DEPTH):
        level = list(islice((part for part in level if id(part) not in seen), _MOST - len(seen)))
        seen.update(map(id, level))
        found += [part for part in level if isinstance(part, GENERATORS)]
        level = [part for whole in level for part in _parts(whole)]
    return found


def _parts(value: object) -> Iterator[object]:
    parts: Iterable[object]
    match value:
        case list() | tuple() | dict():
            parts = islice(value.values() if isinstance(value, dict) else value, _WIDTH)
        case FunctionType():
            parts = _used_by(value)
        case MethodType():
            parts = (value.__self__, value.__func__)
        case partial():
            parts = (value.func, *value.args, *value.keywords.values())
        case type():
            parts = _of_classes(value)
        case _:
            parts = chain(*(held.values() for held in attribute_holders(value)), _of_classes(type(value)))
    return (part for part in parts if not isinstance(part, _PLAIN))


def _of_classes(kind: type) -> Iterator[object]:
    """Yield the methods and generators in the attributes of a class and its bases, as far as these are the user's classes."""
    for owner in kind.__mro__:
        if is_users_module(str(owner.__module__)):
            parts = (getattr(part, "__func__", part) for part in vars(owner).values())
            yield from (part for part in parts if isinstance(part, (*GENERATORS, FunctionType)))


def _used_by(function: FunctionType) -> Iterator[object]:
    """Yield the closure variables of a user's function, and the globals it names that are generators, functions or of user classes."""
    if not is_users(function.__code__.co_filename):
        return
    yield from closed_over(function)
    names = names_in(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            of_module = vars(value) if is_users_module(value.__name__) else {}
            yield from (part for part in map(of_module.get, names) if _is_followed(part))
        elif _is_followed(value):
            yield value


def _is_followed(value: object) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return isinstance(value, (*GENERATORS, FunctionType)) or is_users_module(str(kind.__module__))
