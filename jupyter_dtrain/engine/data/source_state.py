"""What determines a loader's batches: random streams, counters, and state of its dataset that an iteration changes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...capture.random_state import RandomState
from ..rng.generators import generators_in, set_state, state_of
from .counters import Counters, keeper_of
from .held_state import HeldState
from .own_iterators import beginning
from .shared_counts import SharedCounts

_ORDERS = 128  # a sampler's order of eight million samples is still saved


class SourceState:
    """Saved states of everything that may determine a loader's batches: random streams, counters, what the user's samplers hold.

    Parameters
    ----------
    loader : DataLoader
    deep : bool
        Whether an iteration may start over from here: then all state of iterable data is saved, and what workers count in shared memory.
        Within an iteration this is not possible, because the state also lies in variables of a running ``__iter__``, and in workers.
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
        self._held: list[HeldState] = []
        own = [sampler for sampler in samplers if not type(sampler).__module__.startswith("torch.")]
        if own:
            self._held.append(HeldState(own, data=(Dataset, torch.nn.Module, type), times=_ORDERS))
        if isinstance(loader.dataset, IterableDataset):  # its `__iter__` may keep counters: an epoch, a position
            self._counters.append(Counters(loader.dataset))
            if deep and not loader.num_workers:
                self._held.append(HeldState([loader.dataset], data=(torch.nn.Module, type)))
        self._shared = SharedCounts(loader) if deep and loader.num_workers else None
        keeper = keeper_of(loader.collate_fn)
        self._collate = None if keeper is None else Counters(keeper)

    def set(self) -> None:
        """Restore the saved states."""
        self._random_state.set()
        vars(self._loader).update(self._beginning)
        for stream, state in self._streams:
            set_state(stream, state)
        for counters in self._counters:
            counters.set()
        for held in self._held:
            held.set()
        if self._shared is not None:
            self._shared.set()
        self.set_collate()

    def keep_changes(self, num_read: int) -> None:
        """Undo :meth:`set` for what the cell itself has changed in shared memory, after `num_read` batches have been read again."""
        if self._shared is not None and num_read:
            self._shared.keep_changes()

    def set_collate(self) -> None:
        """Restore the state that loading and collating samples uses, which may have been changed by learning."""
        for generator, state in self._generators:
            set_state(generator, state)
        if self._collate is not None:
            self._collate.set()
