"""Workers of loaders tell with a batch the states of their random streams, where they have drawn any numbers to load it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ..drawing.randomness import generators_in, set_state, state_of


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


class Teller:
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
