"""Iterators that give the cell a loader's batches: the rank's part of each, placed, with callbacks before each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..tensor.batch_shard import BatchShard
from .batch_layout import Layout, UnknownBatch
from .collate import CutAfterLoading
from .iterable import Stream
from .source_state import SourceState
from .sources import Source

Place = Callable[[Any, BatchShard, Layout | None], Any]
OnBatch = Callable[[BatchShard | None, int, int | None], None]


class WatchedBatches:
    """The iterator of a loader that is not split."""

    def __init__(self, batches: Any, on_batch: Callable[[], None]) -> None:
        self._batches = batches
        self._on_batch = on_batch

    def __iter__(self) -> WatchedBatches:
        return self

    def __next__(self) -> Any:
        self._on_batch()
        return next(self._batches)

    def skip(self, num: int) -> None:
        """Load `num` batches and drop them."""
        for _ in range(num):
            next(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


@dataclass(frozen=True)
class FirstBatch:
    """Handling of a loader's first batch.

    Attributes
    ----------
    now : callable
        Returns the current states of everything that determines the batches.
    decide : callable
        Called with the error of the batch, or ``None``; returns a source of full batches that starts from the initial state.
    """

    now: Callable[[], SourceState]
    decide: Callable[[UnknownBatch | CutAfterLoading | None], Source]


class SplitBatches:
    """The iterator of a loader that is split."""

    def __init__(
        self,
        source: Source | Stream,
        length: int | None,
        place: Place,
        on_batch: OnBatch,
        first: FirstBatch | None,
    ) -> None:
        source.start()  # draws random numbers at the same point as a single process
        self._source: Source | Stream = source
        self._length = length
        self._place = place
        self._on_batch = on_batch
        self._first = first
        self._asked: SourceState | None = None  # when the first batch was requested
        self._num_failed = 0  # failed batches before the first successful one
        self.count = 0
        self.begin_again: Callable[[Callable[[], None], SourceState | None], None] = _begin_again

    def __iter__(self) -> SplitBatches:
        return self

    def __next__(self) -> Any:
        if self._first is not None and self._asked is None:
            self._asked = self._first.now()
        try:
            batch, share = self._placed()
        except (UnknownBatch, CutAfterLoading) as error:
            if self._asked is None:
                raise TypeError(f"this batch of the loader holds a {error}, unlike the ones before: it cannot be split") from None
            self.begin_again(partial(self._start_over, error), self._asked)
            for _ in range(self._num_failed):
                self._load()
            batch, share = self._placed()
        except StopIteration:
            raise
        except Exception:
            self._num_failed += self._first is not None
            raise
        else:
            if self._first is not None:
                self._first.decide(None)
        self._first = self._asked = None
        self.count += 1
        self._on_batch(share, self.count, self._length)
        return batch

    def _start_over(self, error: UnknownBatch | CutAfterLoading) -> None:
        assert self._first is not None
        self._source = self._first.decide(error)
        self._source.start()

    def skip(self, num: int) -> None:
        """Load `num` batches and drop them."""
        try:
            for _ in range(num):
                self._load()
        except CutAfterLoading as error:
            self.begin_again(partial(self._start_over, error), None)  # skips as many

    def _load(self) -> None:
        try:
            next(self._source)
        except (StopIteration, UnknownBatch, CutAfterLoading):
            raise
        except Exception:
            pass  # the cell caught this error before the resume

    def _placed(self) -> tuple[Any, BatchShard | None]:
        batch, share, layout = next(self._source)
        return (batch if share is None else self._place(batch, share, layout)), share

    def __len__(self) -> int:
        return len(self._source)


def _begin_again(start: Callable[[], None], asked: SourceState | None) -> None:
    start()
    if asked is not None:  # the order is drawn when the first batch is requested
        asked.set()
