"""Iterable data with workers: each worker belongs to one rank, which sends the other ranks their parts of its batches.

A batch of iterable data comes from one worker, and the loader takes the workers in turn. To get the batches of a single process in the same
order, each worker must run once: one rank runs it, with the worker's number and seed, and sends the other ranks their parts of each batch.
Without workers, the dataset reads in the cell's own process with its random numbers, and every rank reads everything.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe
from torch.utils.data._utils import worker as worker_module

from ..comm.failures import error_of, to_bytes
from ..tensor.batch_shard import BatchShard
from ..tensor.redistribute import Exchange
from .batch_layout import UnknownBatch, cut, length_of
from .collate import is_default
from .fetch import Make, copy_of
from .worker_states import seed_of_workers

_END, _UNKNOWN, _FAILED = "end", "unknown", "failed"


class Streams:
    """Assigns the workers of loaders of iterable data to ranks.

    Parameters
    ----------
    rank : int
    shares : callable
        Returns all ranks' shares of a batch of a given size, in rank order.
    """

    def __init__(self, *, rank: int, shares: Callable[[int], tuple[BatchShard, ...]]) -> None:
        self._rank = rank
        self._shares = shares

    @staticmethod
    def can_share_out(loader: DataLoader[Any]) -> bool:
        """Return whether different ranks can run the workers of `loader`."""
        return (
            loader.num_workers > 0
            and isinstance(loader.dataset, IterableDataset)
            and not isinstance(loader.dataset, IterDataPipe)
            and loader.batch_sampler is not None
            and is_default(loader)
        )

    def own_workers(self, loader: DataLoader[Any]) -> dict[int, DataLoader[Any]]:
        """Return a loader for each worker of `loader` that belongs to this rank, by the worker's number."""
        seed = seed_of_workers(loader)  # the loaders made here have a generator of their own
        numbers = [number for number in range(loader.num_workers) if self.owner(number) == self._rank]
        return {number: _with_one_worker(loader, number, seed) for number in numbers}

    def owner(self, worker: int) -> int:
        """Return the rank that runs a worker."""
        return worker % len(self._shares(0))

    def hand_out(self, worker: int, batch: Any) -> Any:
        """Return the rank's part of a batch, which the owner of `worker` scatters. A collective."""
        owner = self.owner(worker)
        return Exchange.scattered(self._parts(batch) if owner == self._rank else None, owner)

    def _parts(self, batch: Any) -> list[Any]:
        shares = self._shares(0)
        if batch is _END:
            return [(_END, None)] * len(shares)
        if isinstance(batch, Exception):
            return [(_FAILED, to_bytes(batch))] * len(shares)
        total = length_of(batch)
        if total is None:
            return [(_UNKNOWN, type(batch).__name__)] * len(shares)
        # Copy the parts: pickling a view would include its whole storage.
        return [(share, _copied(cut(batch, share.loaded))) for share in self._shares(total)]


class Stream:
    """Source of one iteration's batches: from the workers in turn, each until it is exhausted.

    Parameters
    ----------
    streams : Streams
    make : callable
        The loader's own ``__iter__``.
    loader : DataLoader
    own_workers : callable
        Returns a loader for each worker of this rank, by the worker's number: new loaders, or those with persistent workers.
    """

    def __init__(
        self, streams: Streams, make: Make, loader: DataLoader[Any], own_workers: Callable[[], dict[int, DataLoader[Any]]]
    ) -> None:
        self._streams, self._make, self._loader, self._own_workers = streams, make, loader, own_workers
        self._turns: deque[int] = deque()
        self._batches: dict[int, Any] = {}

    def start(self) -> None:
        """Start the rank's own workers."""
        self._batches = {number: self._make(inner) for number, inner in self._own_workers().items()}
        self._turns = deque(range(self._loader.num_workers))

    def __next__(self) -> tuple[Any, BatchShard, None]:
        while self._turns:
            worker = self._turns[0]
            own: Exception | None = None
            try:
                batch = next(self._batches[worker], _END) if worker in self._batches else None
            except Exception as error:  # the worker failed: all ranks raise its error
                batch = own = error
            found, part = self._streams.hand_out(worker, batch)
            if found == _FAILED:
                self._turns.rotate(-1)
                raise own or error_of(part, self._streams.owner(worker))
            if found == _UNKNOWN:
                raise UnknownBatch(part)
            if found == _END:
                self._turns.popleft()
                continue
            self._turns.rotate(-1)
            return part, found, None
        raise StopIteration

    def __len__(self) -> int:
        return len(self._loader.batch_sampler)  # type: ignore[arg-type]


def _copied(part: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, part)


def _with_one_worker(loader: DataLoader[Any], number: int, seed: int) -> DataLoader[Any]:
    init = _AsWorker(number, loader.num_workers, seed, loader.worker_init_fn)
    return copy_of(loader, num_workers=1, worker_init_fn=init, generator=torch.Generator())


class _AsWorker:
    """Gives the only worker of a loader the number and the seeds of one of several workers.

    A class and not a nested function, because it is pickled for workers that are spawned.
    """

    def __init__(self, number: int, num_workers: int, seed: int, then: Callable[[int], None] | None) -> None:
        self._number, self._num_workers, self._seed, self._then = number, num_workers, seed, then

    def __call__(self, _: int) -> None:
        seed = self._seed + self._number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(worker_module._generate_state(self._seed, self._number))
        info: Any = worker_module._worker_info
        worker_module._worker_info = type(info)(id=self._number, num_workers=self._num_workers, seed=seed, dataset=info.dataset)
        if self._then is not None:
            self._then(self._number)
