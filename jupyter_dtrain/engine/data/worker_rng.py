"""Random streams of loader workers, in a run that may resume in another process.

Workers report the states of their random streams with each batch for which they drew. Persistent workers (``persistent_workers=True``)
start once, with a seed drawn then, and keep drawing. A process that resumes the run starts new workers, seeded from the saved state of the
generator, so that nothing is drawn again, and with their streams as they were when the iteration began. The states are kept with the
loader, and thereby in snapshots, and in the notebook for its next cell.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ...system.patches import patched
from ..rng.generators import generators_in, set_state, state_of
from . import own_iterators

# Workers send with a batch the states of their random streams, if they drew random numbers to load it.


@dataclass
class Told:
    """A batch from a worker.

    Attributes
    ----------
    batch : object
    streams : tuple of int, bytes and bytes, optional
        The worker's number, and the states of its streams before and after the batch; ``None``: it drew nothing.
    """

    batch: Any
    streams: tuple[int, bytes, bytes] | None

    def pin_memory(self) -> Told:
        """Pin the batch, as a DataLoader does."""
        return Told(pin_memory(self.batch), self.streams)


class WorkerRngReporter:
    """Wraps a loader's ``worker_init_fn`` and ``collate_fn`` in its workers. One object for both, so that they are pickled together.

    Parameters
    ----------
    loader : DataLoader
    streams : mapping of int to bytes, optional
        By worker: initial states of its streams, as reported by an earlier worker.
    """

    def __init__(self, loader: DataLoader[Any], streams: Mapping[int, bytes] | None = None) -> None:
        self._init, self._collate, self._streams = loader.worker_init_fn, loader.collate_fn, streams or {}

    def start(self, worker: int) -> None:
        """Call the loader's own ``worker_init_fn`` and set the initial states."""
        if self._init is not None:
            self._init(worker)
        info: Any = get_worker_info()
        self._worker, self._generators = worker, generators_in((info.dataset, self._collate))
        if worker in self._streams:
            torch_cpu, numpy_legacy, python, others = pickle.loads(self._streams[worker])
            torch.set_rng_state(torch.from_numpy(torch_cpu))
            np.random.set_state(numpy_legacy)
            random.setstate(python)
            for generator, state in zip(self._generators, others, strict=True):
                set_state(generator, torch.from_numpy(state) if isinstance(generator, torch.Generator) else state)
        self._last = self._now()

    def collate(self, samples: Any) -> Told:
        """Return the batch of the loader's own ``collate_fn``, with the states of the streams if it drew."""
        batch = self._collate(samples)
        before, self._last = self._last, self._now()
        return Told(batch, None if self._last == before else (self._worker, before, self._last))

    def _now(self) -> bytes:
        others = [state_of(generator) for generator in self._generators]
        plain = [state.numpy() if isinstance(state, torch.Tensor) else state for state in others]
        return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state(), random.getstate(), plain))


_NAME = "_dtrain_workers"  # attribute of a loader that holds its `WorkerStates`


@dataclass
class WorkerStates:
    """State of a loader's persistent workers.

    Attributes
    ----------
    seeded_from : torch.Tensor
        State of the generator before the workers' seed was drawn from it.
    streams : dict of int to bytes
        By worker that draws: states of its random streams after the last batch given out.
    """

    seeded_from: torch.Tensor
    streams: dict[int, bytes] = field(default_factory=dict)


def living(loader: DataLoader[Any]) -> WorkerStates | None:
    """Return the state of the workers of `loader`; ``None`` if none have started or they are not persistent."""
    found: WorkerStates | None = loader.__dict__.get(_NAME) if can_live(loader) else None
    return None if found is None else WorkerStates(found.seeded_from, dict(found.streams))


def set_living(loader: DataLoader[Any], known: WorkerStates | None) -> None:
    """Set the state of the workers of `loader` to `known`."""
    loader.__dict__.pop(_NAME, None)
    if known is not None:
        loader.__dict__[_NAME] = WorkerStates(known.seeded_from, dict(known.streams))


def can_live(loader: DataLoader[Any]) -> bool:
    """Return whether the workers of `loader` are persistent and all belong to this process."""
    return loader.persistent_workers and loader.num_workers > 0 and not isinstance(loader.dataset, IterableDataset)


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
    if not loader.num_workers or isinstance(loader.dataset, IterableDataset):
        return make(used)
    if used.persistent_workers and used._iterator is not None:  # its workers are running
        return _Telling(make(used), loader, before, on_draw)
    source = used.generator if used.generator is not None else torch.default_generator
    if before is None:
        set_living(loader, WorkerStates(source.get_state()) if can_live(loader) else None)
    else:
        source = torch.Generator()
        source.set_state(before.seeded_from)
    teller = WorkerRngReporter(used, {} if before is None else before.streams)
    with _with(used, generator=source, worker_init_fn=teller.start, collate_fn=teller.collate):
        return _Telling(make(used), loader, before, on_draw)


def with_attributes(make: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any], **changes: Any) -> Any:
    """Return the result of `make` for a loader whose attributes are changed during the call."""
    with _with(loader, **changes):
        return make(loader)


@contextmanager
def _with(loader: DataLoader[Any], **changes: Any) -> Iterator[None]:
    """Change attributes of a loader during the ``with`` block."""
    own = {name: loader.__dict__[name] for name in changes}
    loader.__dict__.update(changes)
    try:
        yield
    finally:
        loader.__dict__.update(own)


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
                self._loader.__dict__[_NAME].streams[worker] = now
        return found.batch

    def __len__(self) -> int:
        return len(self._batches)
