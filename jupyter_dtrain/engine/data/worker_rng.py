"""What workers of loaders draw at random, in a run that may go on in another process.

Workers tell the states of their random streams with each batch that they have drawn for. Those that live on from one iteration to the next
(``persistent_workers=True``) are started once, with a seed that is drawn then, and go on drawing. A process that goes on with the run
starts others: seeded from where the first ones were, which draws nothing anew, and with their streams as they were when the iteration
began. What is known of them is kept with the loader, and so is in snapshots, and in the notebook for its next cell.
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

# Workers of loaders tell with a batch the states of their random streams, where they have drawn any numbers to load it.


@dataclass
class Told:
    """A batch from a worker.

    Attributes
    ----------
    streams : tuple of int, bytes and bytes, optional
        The worker's number, and the states of its streams before the batch and after it; ``None``: it has drawn nothing.
    """

    batch: Any
    streams: tuple[int, bytes, bytes] | None

    def pin_memory(self) -> Told:
        """Pin the batch, as a loader does."""
        return Told(pin_memory(self.batch), self.streams)


class WorkerRngReporter:
    """Surrounds a loader's own functions in its workers. One object for both of them: they are pickled together.

    Parameters
    ----------
    loader : DataLoader
    streams : mapping of int to bytes, optional
        By worker: the states that its streams are to begin with, as another has told them.
    """

    def __init__(self, loader: DataLoader[Any], streams: Mapping[int, bytes] | None = None) -> None:
        self._init, self._collate, self._streams = loader.worker_init_fn, loader.collate_fn, streams or {}

    def start(self, worker: int) -> None:
        """Begin as the loader's own ``worker_init_fn``."""
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
        """Return the batch, as the loader's own ``collate_fn``, and what it has told."""
        batch = self._collate(samples)
        before, self._last = self._last, self._now()
        return Told(batch, None if self._last == before else (self._worker, before, self._last))

    def _now(self) -> bytes:
        others = [state_of(generator) for generator in self._generators]
        plain = [state.numpy() if isinstance(state, torch.Tensor) else state for state in others]
        return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state(), random.getstate(), plain))


_NAME = "_dtrain_workers"  # of the attribute that a loader has for it


@dataclass
class WorkerStates:
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


def living(loader: DataLoader[Any]) -> WorkerStates | None:
    """Return what is known of the workers of `loader` now; ``None``: none were started yet, or they do not live on."""
    found: WorkerStates | None = loader.__dict__.get(_NAME) if can_live(loader) else None
    return None if found is None else WorkerStates(found.seeded_from, dict(found.streams))


def set_living(loader: DataLoader[Any], known: WorkerStates | None) -> None:
    """Let `known` be what is known of the workers of `loader`."""
    loader.__dict__.pop(_NAME, None)
    if known is not None:
        loader.__dict__[_NAME] = WorkerStates(known.seeded_from, dict(known.streams))


def can_live(loader: DataLoader[Any]) -> bool:
    """Return whether the workers of `loader` live on, and are all of them this process's."""
    return loader.persistent_workers and loader.num_workers > 0 and not isinstance(loader.dataset, IterableDataset)


def iterate(
    make: Callable[[DataLoader[Any]], Any],
    used: DataLoader[Any],
    loader: DataLoader[Any],
    *,
    before: WorkerStates | None,
    on_draw: Callable[[], None],
) -> Any:
    """Return an iterator over `used`, whose workers tell what they draw, and begin as those of `loader` did that have lived on.

    Parameters
    ----------
    make : callable
        The loader's own ``__iter__``.
    used : DataLoader
        `loader`, or a copy of it.
    before : WorkerStates, optional
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
        set_living(loader, WorkerStates(source.get_state()) if can_live(loader) else None)
    else:
        source = torch.Generator()
        source.set_state(before.seeded_from)
    teller = WorkerRngReporter(used, {} if before is None else before.streams)
    with _with(used, generator=source, worker_init_fn=teller.start, collate_fn=teller.collate):
        return _Telling(make(used), loader, before, on_draw)


def with_attributes(make: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any], **changes: Any) -> Any:
    """Return what `make` makes of a loader that has other attributes meanwhile."""
    with _with(loader, **changes):
        return make(loader)


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
    """An iterator over batches whose workers tell the states of their streams."""

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
                self._before.streams[worker] = at_first  # it may have loaded what nobody took of the iteration before
            self._met.add(worker)
            if can_live(self._loader):
                self._loader.__dict__[_NAME].streams[worker] = now
        return found.batch

    def __len__(self) -> int:
        return len(self._batches)
