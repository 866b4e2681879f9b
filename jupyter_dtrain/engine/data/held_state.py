"""State that an iteration over an object may change, saved so that the same iteration can start over.

Loaders, samplers and streams of user or library classes determine their order when an iteration begins: from a generator, an epoch
counter, a list that they shuffle in place. Streams keep their position in an attribute, a dict or a nested reader. All of this is saved
for each object: attributes and container items by identity; random streams, small tensors, arrays and iterators by value. Data are left
out, since an iteration does not change them.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ...serialization.python_reducers import attribute_holders
from ..forward.containers import copy_of, refill
from ..rng.generators import set_state, state_of

_MOST, _WIDTH, _LONGEST = 100, 16, 100_000  # most objects visited; items visited in a container; items of a container that is saved
_LARGE = 1 << 16  # most bytes of a tensor or array that is saved; larger ones are data
_PLAIN = (bool, int, float, str, bytes, type(None))
_CONTAINERS = (list, dict, set, deque)
_NUMBERS = (torch.Tensor, np.ndarray)
_EMPTY: tuple[Any, ...] = ([], (), range(0), range(2**70), "", "é", b"")
_ITERATORS: tuple[type, ...] = tuple(type(iter(empty)) for empty in _EMPTY)
DATA = (Dataset, torch.nn.Module, *_NUMBERS, type)
"""Types that an iteration over another object does not change."""


class HeldState:
    """Saved state reachable from some objects.

    Parameters
    ----------
    roots : iterable of object
        The first objects to visit.
    data : tuple of type
        Types that are not visited, except as roots.
    times : int
        How many times as large containers, tensors and arrays may be and are saved.
    """

    def __init__(self, roots: Iterable[object], *, data: tuple[type, ...] = DATA, times: int = 1) -> None:
        self._longest, self._large = _LONGEST * times, _LARGE * times
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._generators: list[tuple[Any, Any]] = []
        self._numbers: list[tuple[Any, Any]] = []
        pending, seen = deque[Any](roots), dict[int, Any]()
        seen_data: set[int] = set(map(id, pending))
        while pending and len(seen) < _MOST:
            value = pending.popleft()
            if isinstance(value, _PLAIN) or id(value) in seen or (isinstance(value, data) and id(value) not in seen_data):
                continue
            seen[id(value)] = value
            pending.extend(self._note(value))

    def _note(self, value: Any) -> Iterable[Any]:
        """Save the state of `value`; return the objects to visit next."""
        if isinstance(value, _NUMBERS):
            if value.nbytes <= self._large and _is_writable(value):
                self._numbers.append((value, value.detach().clone() if isinstance(value, torch.Tensor) else value.copy()))
            return ()
        if (state := state_of(value)) is not None:
            self._generators.append((value, state))
            return ()
        if isinstance(value, _CONTAINERS):
            if len(value) <= self._longest:
                self._containers.append((value, copy_of(value)))
            return list(islice(value.values() if isinstance(value, dict) else value, _WIDTH))
        if isinstance(value, tuple):
            return value[:_WIDTH]
        attributes = {name: part for holder in attribute_holders(value) for name, part in holder.items() if name != "_iterator"}
        self._attributes.append((value, {name: _kept(part) for name, part in attributes.items() if isinstance(part, _KEPT)}))
        return list(attributes.values())

    def set(self) -> None:
        """Restore the saved state."""
        for value, attributes in self._attributes:
            for holder in attribute_holders(value):
                for name, part in attributes.items():
                    if name in holder and holder[name] is not part:
                        holder[name] = _kept(part)
        for value, before in self._containers:
            refill(value, before)
        for generator, state in self._generators:
            set_state(generator, state)
        for value, numbers in self._numbers:
            if isinstance(value, torch.Tensor):
                value.data.copy_(numbers)
            else:
                value[...] = numbers


_KEPT: tuple[type, ...] = (*_PLAIN, *_CONTAINERS, *_NUMBERS, *_ITERATORS)


def _kept(part: Any) -> Any:
    """Return the value to save for an attribute: for an iterator a copy, which yields the same items from here on."""
    return copy.copy(part) if isinstance(part, _ITERATORS) else part


def _is_writable(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout == torch.strided and not value.is_inference()
    return bool(value.flags.writeable and not value.dtype.hasobject)
