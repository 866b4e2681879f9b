"""Gather the rows of a batch from decoded row groups, and measure the memory of decoded rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .columns import Selection

Piece = tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64] | None]
"""Decoded rows of a group, the rows to take, and their positions in the batch (``None`` if they are all of it)."""


def gather(pieces: Sequence[Piece], total: int, selection: Selection | None = None) -> Any:
    """Return the rows of a batch: a tensor of shape ``(total, …)``, a list of `total`, or a dict of these."""
    store = pieces[0][0]
    if isinstance(store, dict):
        return {name: _taken([(each[name], rows, where) for each, rows, where in pieces], total, selection) for name in store}
    return _taken(pieces, total, selection)


def _taken(pieces: Sequence[Piece], total: int, selection: Selection | None) -> Any:
    store, rows, where = pieces[0]
    if isinstance(store, np.ndarray):
        made = store[rows] if where is None else np.empty((total, *store.shape[1:]), store.dtype)
        for each, some, places in pieces if where is not None else ():
            made[places] = each[some]
        tensor = torch.from_numpy(made)
        return tensor if selection is None or selection.dtype is not torch.bfloat16 else tensor.to(torch.bfloat16)
    if where is None:
        return _items(store, rows)
    items: list[Any] = [None] * total
    for store, rows, where in pieces:
        assert where is not None
        for at, item in zip(where.tolist(), _items(store, rows), strict=True):
            items[at] = item
    return items


def _items(store: Any, rows: npt.NDArray[np.int64]) -> list[Any]:
    return [store[row] for row in rows.tolist()] if isinstance(store, list) else list(store.take(rows).to_pylist())


def nbytes_of(store: Any) -> int:
    """Return the bytes of decoded rows in memory."""
    if isinstance(store, dict):
        return sum(map(nbytes_of, store.values()))
    if isinstance(store, list):
        return sum(_size(item) for item in store)
    return 0 if store is None else int(store.nbytes)


def _size(item: Any) -> int:
    if isinstance(item, np.ndarray | torch.Tensor):
        return int(item.nbytes) + 100
    if isinstance(item, str | bytes | bytearray):
        return len(item) + 50
    if isinstance(item, dict | list | tuple):
        parts: Iterable[Any] = item.values() if isinstance(item, dict) else item
        return 64 + sum(map(_size, parts))
    return 32
