"""Random streams of loader workers, in a run that may resume in another process.

Workers report the states of their random streams with each batch for which they drew. Persistent workers (``persistent_workers=True``)
start once, with a seed drawn then, and keep drawing. A process that resumes the run starts new workers, seeded from the saved state of the
generator, so that nothing is drawn again, and with their streams as they were when the iteration began. The states are kept with the
loader, and thereby in snapshots, and in the notebook: its next cell goes on from them, on engines or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ...serialization.loader_workers import WORKERS
from ...system.patches import patched
from . import own_iterators
from .worker_states import Told, WorkerRngReporter, WorkerStates, can_live, set_living, started_before, with_changed


def iterate(
    make: Callable[[DataLoader[Any]], Any],
    used: DataLoader[Any],
    loader: DataLoader[Any],
    *,
    before: WorkerStates | None,
    on_draw: Callable[[], None],
) -> Any:
    """Return an iterator over `used` whose workers report what they draw, and start from the states in `before`.

    Parameters
    ----------
    make : callable
        The loader's own ``__iter__``.
    used : DataLoader
        `loader`, or a copy of it.
    loader : DataLoader
    before : WorkerStates, optional
        State of the persistent workers at the beginning of this iteration, updated as more becomes known; ``None``: workers start now.
    on_draw : callable
        Called when a worker has drawn random numbers for a batch.
    """
    if not loader.num_workers:
        return make(used)
    if isinstance(used.__dict__["_iterator"], WorkerStates):
        used._iterator = None
    if isinstance(loader.dataset, IterableDataset):
        return with_noted_seed(make, used, loader)
    if used.persistent_workers and used._iterator is not None:  # its workers are running
        return _Telling(make(used), loader, before, on_draw)
    source = used.generator if used.generator is not None else torch.default_generator
    if before is None:
        set_living(loader, WorkerStates(source.get_state()) if can_live(loader) else None)
    else:
        source = before.source()
    teller = WorkerRngReporter(used, {} if before is None else before.streams)
    with with_changed(used, generator=source, worker_init_fn=teller.start, collate_fn=teller.collate):
        return _Telling(make(used), loader, before, on_draw)


def with_noted_seed(make: Callable[[DataLoader[Any]], Any], used: DataLoader[Any], loader: DataLoader[Any]) -> Any:
    """Return an iterator over `used`, a loader or its copy; if it starts persistent workers of iterable data, note their seed."""
    starts = isinstance(loader.dataset, IterableDataset) and used.persistent_workers and used._iterator is None
    if not starts or used.generator is not loader.generator:  # a copy for one of the workers, whose seed is noted before
        return make(used)
    found = started_before(loader)
    with with_changed(used, generator=used.generator if found is None else found.source()):
        made = make(used)
    if (seed := getattr(made, "_base_seed", None)) is not None:
        set_living(loader, WorkerStates.of_seed(seed))
    return made


@contextmanager
def workers_ended() -> Iterator[None]:
    """At the end of the ``with`` block, stop all workers started in it: persistent ones, and those of loops that were left early.

    Otherwise garbage collection would destroy their queues first, and then wait five seconds for each worker.
    """
    made: WeakSet[Any] = WeakSet()

    def noting(make: Any) -> Any:
        @wraps(make)
        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            made.add(self)

        return noted

    try:
        with ExitStack() as stack:
            kinds: list[Any] = [_MultiProcessingDataLoaderIter, *own_iterators.iterators()]
            for kind in kinds:
                stack.enter_context(patched(kind, "__init__", noting(kind.__init__)))
            yield
    finally:
        for iterator in made:
            iterator._shutdown_workers()


class _Telling:
    """An iterator over batches whose workers report the states of their streams."""

    def __init__(self, batches: Any, loader: DataLoader[Any], before: WorkerStates | None, on_draw: Callable[[], None]) -> None:
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
                self._before.streams[worker] = at_first  # it may have prefetched unused batches of the previous iteration
            self._met.add(worker)
            if can_live(self._loader):
                self._loader.__dict__[WORKERS].streams[worker] = now
        return found.batch

    def __len__(self) -> int:
        return len(self._batches)
