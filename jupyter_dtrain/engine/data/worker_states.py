"""Random streams of loader workers: how workers report their states, and how the states are kept with a loader.

Workers of the notebook do not report theirs, so an engine knows only their seed. Its own start from another one, and a line says so if they
draw. Workers of engines report, so the notebook's go on from their states in its next ordinary cell.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ...serialization.loader_workers import WORKERS
from ..rng.generators import generators_in, set_state, state_of

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


@dataclass
class WorkerStates:
    """State of a loader's persistent workers, kept as the loader's attribute `WORKERS`.

    In the notebook it also stands in the place of the loader's iterator until workers are needed.

    Attributes
    ----------
    seeded_from : torch.Tensor
        State of the generator before the workers' seed was drawn from it.
    streams : dict of int to bytes
        By worker that draws: states of its random streams after the last batch given out.
    begun_anew : bool
        Workers of the notebook have drawn before, and their states are unknown.
    """

    seeded_from: torch.Tensor
    streams: dict[int, bytes] = field(default_factory=dict)
    begun_anew: bool = False

    @classmethod
    def of_seed(cls, seed: int) -> WorkerStates:
        """Return the state for workers in the place of the notebook's, whose seed was this one."""
        return cls(torch.Generator().manual_seed(seed).get_state(), begun_anew=True)

    def copy(self) -> WorkerStates:
        """Return a copy that does not change with this state."""
        return WorkerStates(self.seeded_from, dict(self.streams), self.begun_anew)

    def source(self) -> torch.Generator:
        """Return a generator from which the workers' seed is drawn."""
        generator = torch.Generator()
        generator.set_state(self.seeded_from)
        return generator

    def _reset(self, loader: DataLoader[Any]) -> None:
        """Start the workers: an ordinary cell's ``iter(loader)`` calls this in the place of the iterator's own method."""
        start = WorkerRngReporter(loader, self.streams).start
        with with_changed(loader, generator=self.source(), worker_init_fn=start):
            made = loader._get_iterator()
        del loader.__dict__[WORKERS]  # they do not report what they draw
        loader.__dict__["_iterator"] = made

    def _shutdown_workers(self) -> None:
        """Do nothing: no worker has started."""


def living(loader: DataLoader[Any]) -> WorkerStates | None:
    """Return the state of the workers of `loader`; ``None`` if none have started or they are not persistent."""
    found = started_before(loader) if can_live(loader) else None
    return None if found is None else found.copy()


def started_before(loader: DataLoader[Any]) -> WorkerStates | None:
    """Return the state noted with `loader`, of workers here or in another process."""
    found: WorkerStates | int | None = loader.__dict__.get(WORKERS) if loader.persistent_workers else None
    if isinstance(found, int):
        loader.__dict__[WORKERS] = found = WorkerStates.of_seed(found)
    return found


def set_living(loader: DataLoader[Any], known: WorkerStates | None) -> None:
    """Set the state of the workers of `loader` to `known`."""
    loader.__dict__.pop(WORKERS, None)
    if known is not None:
        loader.__dict__[WORKERS] = known.copy()


def seed_of_workers(loader: DataLoader[Any]) -> int:
    """Draw the seed of workers of iterable data as the loader's own iterator does, and note it if they are persistent."""
    found = started_before(loader)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator if found is None else found.source()).item())
    if loader.persistent_workers:
        set_living(loader, WorkerStates.of_seed(seed))  # where they start again, they start from another one
    return seed


def can_live(loader: DataLoader[Any]) -> bool:
    """Return whether the workers of `loader` are persistent and all belong to this process."""
    return loader.persistent_workers and loader.num_workers > 0 and not isinstance(loader.dataset, IterableDataset)


def with_attributes(make: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any], **changes: Any) -> Any:
    """Return the result of `make` for a loader whose attributes are changed during the call."""
    with with_changed(loader, **changes):
        return make(loader)


@contextmanager
def with_changed(loader: DataLoader[Any], **changes: Any) -> Iterator[None]:
    """Change attributes of a loader during the ``with`` block."""
    own = {name: loader.__dict__[name] for name in changes}
    loader.__dict__.update(changes)
    try:
        yield
    finally:
        loader.__dict__.update(own)
