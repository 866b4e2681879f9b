"""Iterable data that are read in this process: what is known of an iteration with each of its batches.

A run that goes on in the midst of such an iteration reads again what was given out, from the state in which it began, which is exact where
the data set gives the same rows again. That it does is looked at: the last batch given out before has to come again. Where a library's data
set says where it is, and is known to go on there without a row lost or repeated (`Integration.position`), nothing is read again.

Each rank reads all rows and keeps its part, so all have to read the same: data sets that divide themselves between the processes
of a group would lose rows.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from ...errors import DataError
from ...integrations.registry import position_in
from .collate import Agree
from .iteration_places import IteratorState

_MOST = 64  # numbers at each end of a tensor that tell it from others
_END, _FAILED = b"end", b"failed"


def is_followed(loader: DataLoader[Any]) -> bool:
    """Return whether the batches of `loader` are those of iterable data that this process reads."""
    return isinstance(loader.dataset, IterableDataset) and not loader.num_workers


class FollowedStream:
    """An iterator over batches of iterable data.

    Parameters
    ----------
    batches : iterator
        The loader's own.
    cursor : IteratorState
        Of the iteration; one that goes on has the place.
    agree : callable, optional
        Returns all ranks' values of what is given, a collective; ``None`` where ranks need not read the same.
    """

    def __init__(self, batches: Any, cursor: IteratorState, agree: Agree | None) -> None:
        self._batches, self._cursor, self._agree = batches, cursor, agree
        self._position = None if type(cursor.loader) is not DataLoader else position_in(cursor.loader.dataset)
        self._place = cursor.place if cursor.place is not None and cursor.place[0] == cursor.taken else None
        self._given = 0 if self._place is None else cursor.taken
        self._has_begun = False
        self.last: bytes | None = None
        cursor.stream = self

    def __iter__(self) -> FollowedStream:
        return self

    def __next__(self) -> Any:
        token, agree = _FAILED, None if self._has_begun else self._agree
        try:
            batch = self._next()
            token = self.last = fingerprint(batch)
        except StopIteration:
            token, self._position = _END, None
            raise
        finally:
            if agree is not None:
                tokens = agree(token)
                if _FAILED not in tokens and len(set(tokens)) > 1:
                    raise DataError(
                        "The engines were given different rows by a loader over iterable data, each of which reads all of them: its "
                        f"data set ({type(self._cursor.loader.dataset).__name__}) divides itself between the processes of a group, or "
                        "draws from a stream of its own. Leave the division out (jupyter_dtrain divides batches), or seed what it draws."
                    )
        self._given += 1
        return batch

    def _next(self) -> Any:
        first, self._has_begun = not self._has_begun, True
        if not first or self._position is None:
            return next(self._batches)
        if self._place is not None and not self._position.load_state_dict(self._place[1]):
            for _ in range(self._given):
                next(self._batches)
        with self._position.starting():
            return next(self._batches)

    def place(self) -> tuple[int, Any] | None:
        """Return after how many batches the data set is where it says it is, and where; ``None``: not known."""
        if not self._has_begun:
            return self._place
        if self._position is None or self._given != self._cursor.taken:
            return None
        state = self._position.state_dict()
        return None if state is None else (self._given, state)

    def __len__(self) -> int:
        return len(self._batches)


def check_replayed(cursor: IteratorState, before: bytes | None, say: Callable[[str], None]) -> None:
    """Say so where the last batch that was read again is not the one that was given out."""
    if before is not None and cursor.stream is not None and cursor.stream.last not in (None, before):
        say(
            f"The loader's data set ({type(cursor.loader.dataset).__name__}) gave other rows when its first {cursor.taken} batches were "
            "read again to go on behind them: rows may be lost or repeated"
        )


def fingerprint(batch: Any) -> bytes:
    """Return what tells a batch from others: of tensors and arrays their shapes and some of their numbers, of all else its text."""
    found = blake2b(digest_size=16)
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout != torch.strided or leaf.device.type != "cpu" or leaf.is_nested or leaf.is_quantized:
                continue
            plain = leaf.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
            ends = plain.reshape(-1)
            found.update(repr((tuple(leaf.shape), leaf.dtype)).encode())
            found.update(torch.cat([ends[:_MOST], ends[-_MOST:]]).view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            found.update(repr((leaf.shape, leaf.dtype)).encode() + leaf.reshape(-1)[:_MOST].tobytes() + leaf.reshape(-1)[-_MOST:].tobytes())
        elif isinstance(leaf, str | bytes | int | float | bool):
            found.update(repr(leaf)[:1000].encode())
    return found.digest()
