"""Where an iteration over a loader is: what a snapshot has of it, and what is passed over where it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...capture.random_state import RandomState
from ...data.samplers import SeekableIterator
from ..current_run import current_run
from ..rng.generators import generators_in, set_state, state_of
from ..user_frames import is_ours
from .counters import Counters, keeper_of
from .fetch import copy_of
from .held_state import HeldState
from .own_iterators import beginning, iterates_itself, its_own
from .worker_rng import WorkerStates


class SourceState:
    """The states of all that may decide on a loader's batches, at one moment: random streams, and counters.

    Parameters
    ----------
    loader : DataLoader
    deep : bool
        Whether an iteration over iterable data may be begun again from here, and not only go on: all that the data set holds counts
        then. In the midst of one, what its `__iter__` has in variables and what it holds are one, and are left as they are.
    """

    def __init__(self, loader: DataLoader[Any], *, deep: bool = False) -> None:
        self._random_state = RandomState.now()
        self._loader, self._beginning = loader, beginning(loader)
        self._streams: list[tuple[Any, Any]] = []
        self._counters: list[Counters] = []
        batches = loader.batch_sampler
        samplers = (loader.sampler, batches, getattr(batches, "sampler", None))
        self._generators = [(generator, state_of(generator)) for generator in generators_in((loader.dataset, loader.collate_fn))]
        for owner in dict.fromkeys(part for part in (loader, *samplers) if hasattr(part, "__dict__")):
            for value in vars(owner).values():
                state = state_of(value)
                if state is not None:
                    self._streams.append((value, state))
            if owner is not loader:
                self._counters.append(Counters(owner))
        self._held: HeldState | None = None
        if isinstance(loader.dataset, IterableDataset):  # its own `__iter__` counts: an epoch, where it is
            self._counters.append(Counters(loader.dataset))
            if deep and not loader.num_workers:
                self._held = HeldState([loader.dataset], data=(torch.nn.Module, type))
        keeper = keeper_of(loader.collate_fn)
        self._collate = None if keeper is None else Counters(keeper)

    def set(self) -> None:
        """Make it the present one."""
        self._random_state.set()
        vars(self._loader).update(self._beginning)
        for stream, state in self._streams:
            set_state(stream, state)
        for counters in self._counters:
            counters.set()
        if self._held is not None:
            self._held.set()
        self.set_collate()

    def set_collate(self) -> None:
        """Let what samples are loaded and collated with be as it was: they may have been since, to learn from."""
        for generator, state in self._generators:
            set_state(generator, state)
        if self._collate is not None:
            self._collate.set()


class Stream(Protocol):
    """What reads the iterable data of an iteration in this process."""

    last: bytes | None
    """Fingerprint of the last batch."""

    def place(self) -> tuple[int, Any] | None:
        """Return after how many batches the data are where they say they are, and where; ``None``: not known."""


@dataclass
class IteratorState:
    """Where one iteration over a loader is.

    Attributes
    ----------
    training, split : bool
        What the iteration was begun for.
    start : SourceState
        When the iteration began.
    first : SourceState, optional
        When the first batch was asked for: loaders without workers draw their order then.
    taken : int
        Batches given out.
    finished : bool
        There was no other batch.
    draws_in_workers : bool
        Workers draw random numbers for samples, so batches are loaded to be left out.
    living : WorkerStates, optional
        What is known of workers that were there when the iteration began.
    last : bytes, optional
        Fingerprint of the last batch given out, of iterable data that this process reads.
    place : (int, object), optional
        Where these said they were, and after how many batches.
    stream : Stream, optional
        What reads them now.
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
        """How many batches have to be loaded to be left out."""
        return self.taken if self.has_to_load and (self.place is None or self.place[0] != self.taken) else 0

    @property
    def has_to_load(self) -> bool:
        """Whether batches have to be loaded to be left out."""
        return self.draws_in_workers or isinstance(self.loader.dataset, IterableDataset) or iterates_itself(self.loader)


class Skipping:
    """A sampler that leaves out the first of what another gives.

    Parameters
    ----------
    sampler : iterable
    num : int
        How many are left out.
    """

    def __init__(self, sampler: Any, num: int) -> None:
        self._sampler = sampler
        self._num = num
        self._next: _Rest | None = None  # the iteration that begins

    def __iter__(self) -> _Rest:
        rest = self._next
        if rest is None or rest.is_taken:
            rest = self._next = _Rest(self._sampler, self._num)
        rest.is_taken = True
        return rest

    def draw(self) -> None:
        """Draw the order of the iteration that begins now, and not when its first item is asked for."""
        if self._next is None or self._next.has_begun:
            self._next = _Rest(self._sampler, self._num)
        self._next.draw()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class _Rest:
    """What is left of an iteration over a sampler."""

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
    """Return a loader without the batches that were given out; ``None`` for its sampler where they have to be loaded to be left out."""
    loader, num = cursor.loader, cursor.taken * together
    if cursor.has_to_load:
        return loader, None
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = Skipping(getattr(loader, name), num)
    return copy_of(loader, persistent_workers=False, **{name: sampler}), sampler


def go_on(cursor: IteratorState) -> Any:
    """Return the batches that are left of an iteration. Random streams are then as they were when these had been given out."""
    run = current_run.loaders
    together = 1 if run is None else run.together
    loader, sampler = skipping(cursor, together)

    def start(make: Callable[[], Any]) -> Any:
        cursor.start.set()
        made = make()
        if sampler is not None and cursor.first is not None and not loader.num_workers:  # workers are told at once what to load
            cursor.first.set()
            sampler.draw()
        return made

    if run is not None:
        return run.go_on(its_own(loader), cursor, loader, start)
    batches = start(lambda: its_own(loader)(loader))
    if sampler is None:
        for _ in range(cursor.taken):
            next(batches)
    return batches


def passes_on(filename: str) -> bool:
    """Return whether a caller in this file takes batches without a look at them: this project, and progress bars."""
    return is_ours(filename) or "tqdm" in Path(filename).parts
