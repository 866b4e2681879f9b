"""Objects that a collate function hands on from the data set: the dicts of a list, the boxes of an image, the nodes of a graph.

What the cell writes to such an object stays in the data set, and the cell may tell it from its equals. A copy from another rank would do
for neither, so each rank has to load full batches. An object is the data set's own if two fetches of the same sample return it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ...serialization.python_reducers import attribute_holders
from ..user_frames import is_users_module
from .batch_layout import Layout, entries_in

_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic, torch.dtype, torch.device, torch.Size, type, Enum, ModuleType)
_STATES = ("__getstate__", "__reduce__", "__reduce_ex__")
_MOST = 5000  # most objects visited in a batch


def hands_on(batch: Any, again: Any, layout: Layout) -> bool:
    """Return whether the entries of a batch are or hold objects that must not be copied.

    Parameters
    ----------
    batch : object
        A collated part of a full batch.
    again : object
        The same full batch, from samples that were fetched a second time.
    layout : Layout
    """
    first, second = list(_within(entries_in(batch, layout))), list(_within(entries_in(again, layout)))
    known = {_key(value) for value in first} - {None}
    if any(_key(value) in known for value in second) or any(map(_has_own_state, first)):
        return True
    try:
        pickle.dumps(entries_in(batch, layout))
    except Exception:  # another rank could not have them
        return True
    return False


def are_plain(batch: Any, layout: Layout) -> bool:
    """Return whether the entries of a batch are texts, numbers and the like, of which a copy is as good."""
    return not any(True for _ in _within(entries_in(batch, layout)))


def _within(entries: Iterable[Any]) -> Iterator[Any]:
    """Yield the objects among `entries` and their parts that can be changed or have an identity."""
    pending, seen = deque(entries), set[int]()
    while pending and len(seen) < _MOST:
        value = pending.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tuple | frozenset):
            pending.extend(value)
            if not hasattr(value, "__dict__"):
                continue
        yield value
        if isinstance(value, list | set | deque):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(value.keys())
            pending.extend(value.values())
        elif not isinstance(value, torch.Tensor | np.ndarray):
            pending.extend(part for holder in attribute_holders(value) for part in islice(holder.values(), _MOST))


def _key(value: Any) -> Any:
    """Return what only the same object has, or for numbers the same memory; ``None`` for what has none."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_meta:
            return id(value)
        return ("memory", value.untyped_storage().data_ptr()) if value.numel() else None
    if isinstance(value, np.ndarray):
        return ("memory", value.__array_interface__["data"][0]) if value.size else None
    return id(value)


def _has_own_state(value: Any) -> bool:
    """Return whether the class of a value, one of the user's, says itself what a copy has of it."""
    kind = type(value)
    owners = (next((owner for owner in kind.__mro__ if name in vars(owner)), object) for name in _STATES)
    return any(is_users_module(str(owner.__module__)) for owner in owners)
