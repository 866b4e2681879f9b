"""Positions of iterations over loaders: what a snapshot saves of them, and how a resumed iteration skips batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from ...data.samplers import SeekableIterator
from ..current_run import current_run
from ..user_frames import is_ours
from .fetch import copy_of
from .own_iterators import iterates_itself, its_own
from .source_state import SourceState
from .worker_states import WorkerStates


class Stream(Protocol):
    """Reads the iterable data of an iteration in this process."""

    last: bytes | None
    """Fingerprint of the last batch."""

    def place(self) -> tuple[int, Any] | None:
        """Return the number of batches given out and the data's position after them; ``None`` if unknown."""


@dataclass
class IteratorState:
    """Position of one iteration over a loader.

    Attributes
    ----------
    loader : DataLoader
    training, split : bool
        The purpose of the iteration, and whether its batches are split.
    start : SourceState
        State when the iteration began.
    first : SourceState, optional
        State when the first batch was requested: loaders without workers draw their order then.
    taken : int
        Number of batches given out.
    finished : bool
        Whether the iteration is exhausted.
    draws_in_workers : bool
        Whether workers draw random numbers for samples, so that skipped batches must be loaded.
    living : WorkerStates, optional
        State of the persistent workers when the iteration began.
    last : bytes, optional
        Fingerprint of the last batch given out, for iterable data that this process reads.
    place : (int, object), optional
        Position of such data, after the number of batches that comes first.
    stream : Stream, optional
        The current reader of such data.
    """

    loader: DataLoader[Any]
    training: bool
    split: bool
    start: SourceState
    first: SourceState | None = None
    taken: int = 0
    finished: bool = False
    draws_in_workers: bool = False
    living: WorkerStates | None = None
    last: bytes | None = None
    place: tuple[int, Any] | None = None
    stream: Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        stream = self.stream
        now = {} if stream is None else {"place": stream.place(), "last": stream.last or self.last}
        return {**vars(self), **now, "stream": None}

    @property
    def num_to_load(self) -> int:
        """Number of batches that must be loaded to be skipped."""
        return self.taken if self.has_to_load and (self.place is None or self.place[0] != self.taken) else 0

    @property
    def has_to_load(self) -> bool:
        """Whether batches must be loaded to be skipped."""
        return self.draws_in_workers or isinstance(self.loader.dataset, IterableDataset) or iterates_itself(self.loader)


class Skipping:
    """A sampler without the first items of another.

    Parameters
    ----------
    sampler : iterable
    num : int
        Number of items to skip.
    """

    def __init__(self, sampler: Any, num: int) -> None:
        self._sampler = sampler
        self._num = num
        self._next: _Rest | None = None  # the iteration that begins next

    def __iter__(self) -> _Rest:
        rest = self._next
        if rest is None or rest.is_taken:
            rest = self._next = _Rest(self._sampler, self._num)
        rest.is_taken = True
        return rest

    def draw(self) -> None:
        """Draw the order of the next iteration now, and not when its first item is requested."""
        if self._next is None or self._next.has_begun:
            self._next = _Rest(self._sampler, self._num)
        self._next.draw()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Rest:
    """The remaining items of an iteration over a sampler."""

    def __init__(self, sampler: Any, num: int) -> None:
        self._items = iter(sampler)
        self._left_out, self._left = num, num
        self._ahead: list[Any] = []
        self.is_taken = self.has_begun = False

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        self.has_begun = True
        self._skip()
        return self._ahead.pop() if self._ahead else next(self._items)

    def draw(self) -> None:
        self._skip()
        if not self._left_out:
            self._ahead += islice(self._items, 1)

    def _skip(self) -> None:
        if self._left and isinstance(self._items, SeekableIterator):
            self._items.skip(self._left)
            self._left = 0
        while self._left:
            self._left -= 1
            next(self._items, None)


def skipping(cursor: IteratorState, together: int) -> tuple[DataLoader[Any], Skipping | None]:
    """Return a loader that skips the batches given out, and its sampler; the loader itself and ``None`` if they must be loaded."""
    loader, num = cursor.loader, cursor.taken * together
    if cursor.has_to_load:
        return loader, None
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = Skipping(getattr(loader, name), num)
    return copy_of(loader, persistent_workers=False, **{name: sampler}), sampler


def go_on(cursor: IteratorState) -> Any:
    """Return the remaining batches of an iteration, with random streams as they were when the earlier batches had been given out."""
    run = current_run.loaders
    cursor.draws_in_workers |= run is not None and cursor.loader.num_workers > 0 and run.draws_late(cursor.loader)
    together = 1 if run is None else run.together
    loader, sampler = skipping(cursor, together)

    def start(make: Callable[[], Any]) -> Any:
        cursor.start.set()
        made = make()
        if sampler is not None and cursor.first is not None and not loader.num_workers:  # with workers, the order is drawn at once
            cursor.first.set()
            sampler.draw()
        return made

    if run is not None:
        return run.go_on(its_own(loader), cursor, loader, start)
    batches = start(lambda: its_own(loader)(loader))
    if sampler is None:
        for _ in range(cursor.taken):
            next(batches)
    cursor.start.keep_changes(cursor.taken)
    return batches


def passes_on(filename: str) -> bool:
    """Return whether a caller in this file passes batches on without using them: this project, and progress bars."""
    return is_ours(filename) or "tqdm" in Path(filename).parts
