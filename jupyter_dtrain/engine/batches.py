"""What a loader yields, whatever its structure: how many samples, the rank's part of them, and how the cell sees it.

Tensors are cut and placed along dim 0. What is not a tensor (texts, ids, boxes of different sizes) comes one entry per
sample in a list; the ranks' lists are put together again, so the cell sees all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import torch

from .exchange import Exchange
from .placements import Shard, place
from .shares import Share

_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic)


class UnknownBatch(Exception):
    """A batch holds something of which it cannot be said which part belongs to which sample."""


def length_of(batch: Any) -> int | None:
    """Return the number of samples: dim 0 of the first tensor, ``None`` where there is none."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return batch.shape[0] if batch.ndim else None
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    elif is_dataclass(batch) and not isinstance(batch, type):
        parts = [getattr(batch, field.name) for field in fields_of(batch)]
    for part in parts:
        found = length_of(part)
        if found is not None:
            return found
    return None


def cut(batch: Any, part: slice, total: int) -> Any:
    """Return the samples `part` of a whole batch of `total`."""

    def one(value: Any) -> Any:
        return value[part] if isinstance(value, torch.Tensor | np.ndarray) and value.ndim and value.shape[0] == total else value

    return _rebuild(batch, one, total, lambda items: items[part])


def placed(batch: Any, share: Share) -> Any:
    """Return the rank's part of a batch as the cell is to see it: tensors placed, entries per sample complete.

    Raises
    ------
    UnknownBatch
        There is something else in it.
    """
    loaded = share.loaded.stop - share.loaded.start
    own = share.num_samples

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return place(value, Shard(0, share)) if value.dim() and value.shape[0] == loaded else value
        if isinstance(value, np.ndarray):
            return np.concatenate(Exchange.objects(value[:own])) if value.ndim and value.shape[0] == loaded else value
        if isinstance(value, _PLAIN):
            return value
        raise UnknownBatch(type(value).__name__)

    def entries(items: Any) -> Any:
        whole = [item for part in Exchange.objects(list(items[:own])) for item in part]
        return whole if isinstance(items, list) else type(items)(whole)

    return _rebuild(batch, one, loaded, entries)


def _rebuild(batch: Any, one: Callable[[Any], Any], length: int, entries: Callable[[Any], Any]) -> Any:
    """Return `batch` with `one` applied to single values, and `entries` to lists with one entry per sample."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return one(batch)
    if isinstance(batch, Mapping):
        mapped = {key: _rebuild(value, one, length, entries) for key, value in batch.items()}
        return mapped if type(batch) is dict else type(batch)(mapped)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_rebuild(value, one, length, entries) for value in batch))
    if isinstance(batch, list | tuple):
        if _has_entry_per_sample(batch, length):
            return entries(batch)
        return type(batch)(_rebuild(value, one, length, entries) for value in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        new = {field.name: _rebuild(getattr(batch, field.name), one, length, entries) for field in fields_of(batch) if field.init}
        return replace(batch, **new)
    return one(batch)


def _has_entry_per_sample(items: list[Any] | tuple[Any, ...], length: int) -> bool:
    """Return whether a list has one entry per sample, and not one batch per entry like ``[inputs, targets]``."""
    if len(items) != length:
        return False
    return not all(isinstance(item, torch.Tensor | np.ndarray) and item.ndim and item.shape[0] == length for item in items)
