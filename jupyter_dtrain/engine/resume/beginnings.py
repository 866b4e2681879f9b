"""How what a loop walks over was before the loop began: to walk over it again in the same order.

Loaders, samplers and streams of the user's or of a library's own class draw their order when an iteration begins: from random streams,
from a generator that they hold, by an epoch that they count, from a list that they shuffle in place. A snapshot has these as they are in
the midst of the iteration. So what an iterable holds is noted when the iteration begins: numbers, texts and containers in its attributes,
and generators; not data, which no iteration changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ...capture.bundle import RandomState
from ...serialization.python_reducers import attribute_holders
from ..forward.containers import copy_of, refill
from ..rng.streams import set_state, state_of

_MOST, _WIDTH, _LONGEST = 100, 16, 100_000  # objects; parts of a container that are looked at; items of one that is kept
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, dict, set, deque)
_DATA = (Dataset, torch.nn.Module, torch.Tensor, np.ndarray, type)
_LIBRARIES = frozenset(
    ("builtins", "pandas", "pathlib", "torch", "tqdm")
)  # top packages of classes whose iterations change nothing of theirs


class Beginning:
    """The states of random streams, and of what iterables hold, at one moment.

    Parameters
    ----------
    iterables : iterable of object
    """

    def __init__(self, iterables: Iterable[object] = ()) -> None:
        self._iterables = [value for value in iterables if begins_its_own_way(value)]
        self._random_state = RandomState.now()
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._generators: list[tuple[Any, Any]] = []
        pending, seen = deque[Any](self._iterables), dict[int, Any]()
        while pending and len(seen) < _MOST:
            value = pending.popleft()
            if isinstance(value, (*_PLAIN, *_DATA)) or id(value) in seen:
                continue
            seen[id(value)] = value
            if (state := state_of(value)) is not None:
                self._generators.append((value, state))
            elif isinstance(value, _CONTAINERS):
                if len(value) <= _LONGEST:
                    self._containers.append((value, copy_of(value)))
                pending.extend(islice(value.values() if isinstance(value, dict) else value, _WIDTH))
            elif isinstance(value, tuple):
                pending.extend(islice(value, _WIDTH))
            else:
                attributes = _attributes_of(value)
                self._attributes.append(
                    (value, {name: part for name, part in attributes.items() if isinstance(part, (*_PLAIN, *_CONTAINERS))})
                )
                pending.extend(attributes.values())

    def set(self) -> None:
        """Make it the present one."""
        self._random_state.set()
        for value, attributes in self._attributes:
            for holder in attribute_holders(value):
                for name, part in attributes.items():
                    if name in holder and holder[name] is not part:
                        holder[name] = part
        for value, before in self._containers:
            refill(value, before)
        for generator, state in self._generators:
            set_state(generator, state)

    def now(self) -> Beginning:
        """Return the same of this moment."""
        return Beginning(self._iterables)


def begins_its_own_way(value: object) -> bool:
    """Return whether an iteration over `value` may change what it holds: one of a class of the user's, or of a library for loaders."""
    kind: Any = type(value)
    own = kind.__module__.partition(".")[0] not in _LIBRARIES
    return own and hasattr(kind, "__iter__") and not hasattr(kind, "__next__") and not isinstance(value, _DATA)


def _attributes_of(value: Any) -> dict[str, Any]:
    return {name: part for holder in attribute_holders(value) for name, part in holder.items() if name != "_iterator"}
