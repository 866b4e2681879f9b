"""Iterable data that this process reads: resuming within an iteration, and checking that all ranks read the same.

A run that resumes within such an iteration reads the earlier batches again from the initial state, which is exact if the dataset returns
the same rows again. This is checked: the last batch before the resume must come again. If a library's dataset reports its position and is
known to continue there without losing or repeating a row (`Integration.position`), nothing is read again.

Each rank reads all rows and keeps its part, so all ranks must read the same. A dataset that divides itself between the processes of a
group would lose rows.
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

_MOST = 64  # elements at each end of a tensor that go into its fingerprint
_END, _FAILED = b"end", b"failed"


def is_followed(loader: DataLoader[Any]) -> bool:
    """Return whether this process reads the batches of `loader` from iterable data."""
    return isinstance(loader.dataset, IterableDataset) and not loader.num_workers


class FollowedStream:
    """An iterator over batches of iterable data.

    Parameters
    ----------
    batches : iterator
        The loader's own iterator.
    cursor : IteratorState
        State of the iteration; in a resumed one it has the dataset's position.
    agree : callable, optional
        Returns all ranks' values of its argument, a collective; ``None`` if ranks need not read the same.
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
                        "A loader over iterable data gave the engines different rows, though each engine reads all of them: its "
                        f"data set ({type(self._cursor.loader.dataset).__name__}) shards itself by rank, or "
                        "draws from a random stream of its own. Remove the sharding (jupyter_dtrain shards batches), or seed the stream."
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
        """Return the number of batches given out and the dataset's position after them; ``None`` if unknown."""
        if not self._has_begun:
            return self._place
        if self._position is None or self._given != self._cursor.taken:
            return None
        state = self._position.state_dict()
        return None if state is None else (self._given, state)

    def __len__(self) -> int:
        return len(self._batches)


def check_replayed(cursor: IteratorState, before: bytes | None, say: Callable[[str], None]) -> None:
    """Warn if the last batch that was read again differs from the one before the resume."""
    if before is not None and cursor.stream is not None and cursor.stream.last not in (None, before):
        say(
            f"The loader's data set ({type(cursor.loader.dataset).__name__}) gave different rows when its first {cursor.taken} batches "
            "were read again to resume: rows may be lost or repeated"
        )


def fingerprint(batch: Any) -> bytes:
    """Return a fingerprint of a batch: shapes, dtypes and some elements of tensors and arrays, and the repr of plain values."""
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
