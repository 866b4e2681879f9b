"""What workers of loaders draw at random, in a run that may go on in another process.

Workers tell the states of their random streams with each batch that they have drawn for. Those that live on from one iteration to the next
(``persistent_workers=True``) are started once, with a seed that is drawn then, and go on drawing. A process that goes on with the run
starts others: seeded from where the first ones were, which draws nothing anew, and with their streams as they were when the iteration
began. What is known of them is kept with the loader, and so is in snapshots, and in the notebook for its next cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest import mock
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from .teller import Teller, Told

_NAME = "_dtrain_workers"  # of the attribute that a loader has for it


@dataclass
class Living:
    """What is known of a loader's workers.

    Attributes
    ----------
    seeded_from : torch.Tensor
        State of the generator before their seed was drawn from it.
    streams : dict of int to bytes
        By worker: the states of its random streams when it had loaded the last batch that was given out, if it draws any.
    """

    seeded_from: torch.Tensor
    streams: dict[int, bytes] = field(default_factory=dict)


def living(loader: DataLoader[Any]) -> Living | None:
    """Return what is known of the workers of `loader` now; ``None``: none were started yet, or they do not live on."""
    found: Living | None = loader.__dict__.get(_NAME) if can_live(loader) else None
    return None if found is None else Living(found.seeded_from, dict(found.streams))


def set_living(loader: DataLoader[Any], known: Living | None) -> None:
    """Let `known` be what is known of the workers of `loader`."""
    loader.__dict__.pop(_NAME, None)
    if known is not None:
        loader.__dict__[_NAME] = Living(known.seeded_from, dict(known.streams))


def can_live(loader: DataLoader[Any]) -> bool:
    """Return whether the workers of `loader` live on, and are all of them this process's."""
    return loader.persistent_workers and loader.num_workers > 0 and not isinstance(loader.dataset, IterableDataset)


def iterate(
    make: Callable[[DataLoader[Any]], Any],
    used: DataLoader[Any],
    loader: DataLoader[Any],
    *,
    before: Living | None,
    on_draw: Callable[[], None],
) -> Any:
    """Return an iterator over `used`, whose workers tell what they draw, and begin as those of `loader` did that have lived on.

    Parameters
    ----------
    make : callable
        The loader's own ``__iter__``.
    used : DataLoader
        `loader`, or a copy of it.
    before : Living, optional
        What is known of the workers at the beginning of this iteration, noted here as more becomes known; ``None``: they are started now.
    on_draw : callable
        Told that a worker has drawn random numbers for a batch.
    """
    if not loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return make(used)
    if used.persistent_workers and used._iterator is not None:  # they are there
        return _Telling(make(used), loader, before, on_draw)
    source = used.generator if used.generator is not None else torch.default_generator
    if before is None:
        set_living(loader, Living(source.get_state()) if can_live(loader) else None)
    else:
        source = torch.Generator()
        source.set_state(before.seeded_from)
    teller = Teller(used, {} if before is None else before.streams)
    with _with(used, generator=source, worker_init_fn=teller.start, collate_fn=teller.collate):
        return _Telling(make(used), loader, before, on_draw)


@contextmanager
def _with(loader: DataLoader[Any], **changes: Any) -> Iterator[None]:
    """Let a loader have other attributes while its workers are started."""
    own = {name: loader.__dict__[name] for name in changes}
    loader.__dict__.update(changes)
    try:
        yield
    finally:
        loader.__dict__.update(own)


@contextmanager
def workers_ended() -> Iterator[None]:
    """End the workers that the ``with`` block has left: those that live on, and those of loops that were broken off.

    Python's collector would end their queues before them, and then wait five seconds for each to hear of it.
    """
    made: WeakSet[Any] = WeakSet()
    make = _MultiProcessingDataLoaderIter.__init__

    @wraps(make)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.add(self)

    try:
        with mock.patch.object(_MultiProcessingDataLoaderIter, "__init__", noted):
            yield
    finally:
        for iterator in made:
            iterator._shutdown_workers()


class _Telling:
    """An iterator over batches whose workers tell the states of their streams."""

    def __init__(self, batches: Any, loader: DataLoader[Any], before: Living | None, on_draw: Callable[[], None]) -> None:
        self._batches, self._loader, self._before, self._on_draw = batches, loader, before, on_draw
        self._met: set[int] = set()

    def __iter__(self) -> _Telling:
        return self

    def __next__(self) -> Any:
        found: Told = next(self._batches)
        if found.streams is not None:
            self._on_draw()
            worker, at_first, now = found.streams
            if self._before is not None and worker not in self._met:
                self._before.streams[worker] = at_first  # it may have loaded what nobody took of the iteration before
            self._met.add(worker)
            if can_live(self._loader):
                self._loader.__dict__[_NAME].streams[worker] = now
        return found.batch

    def __len__(self) -> int:
        return len(self._batches)
