"""Sources of the batches of one iteration over a loader, with the rank's part of each.

With indices, a rank loads only its own samples. If loading draws random numbers (augmentation), a sample depends on all samples loaded
before it. Every rank then loads full batches, which draws the same numbers as a single process, and cuts them. Whether loading draws is
learned at a loader's first batch: from the loading stream in this process, or from the worker's own streams in a worker. These are
compared around each later batch too: if loading begins to draw there, the run goes back to its last snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..comm.failures import FailedElsewhere
from ..rng.streams import LoadingStream
from ..tensor.agreed import failures_of, note, raise_if_any
from ..tensor.batch_shard import BatchShard
from ..tensor.caught import may_be_caught
from .batch_layout import Layout, UnknownBatch
from .collate import Collation, CutAfterLoading
from .collate_probe import collated_if_possible
from .fetch import copy_of, has_rows
from .fetch_state import FetchState
from .joined_batches import with_batches
from .worker_states import Told, WorkerRngReporter

Loaded = tuple[Any, BatchShard | None, Layout | None]
Check = Callable[[Any, BatchShard], None]


class Source:
    """Full batches, of which `share` returns the rank's part. The iteration begins with :meth:`start`."""

    def __init__(self, make: Callable[[Any], Any], loader: DataLoader[Any], share: Callable[[Any], Loaded]) -> None:
        self._make, self._loader, self._share = make, loader, share
        self._batches: Any = None

    def start(self) -> None:
        """Begin the iteration; random numbers are drawn at the same point as in a single process."""
        self._batches = self._make(self._loader)

    def __next__(self) -> Loaded:
        return self._share(next(self._batches))

    def __len__(self) -> int:
        return len(self._batches)


class LoaderShard(Source):
    """The rank's own samples of each batch, loaded by their indices.

    Parameters
    ----------
    make : callable
        Makes the iterator of a loader.
    loader : DataLoader
        A loader made by `of_own_samples`.
    stream : LoadingStream, optional
        Random stream for loading; ``None``: the cell's, or the workers'.
    on_first : callable, optional
        Called at the first batch with whether loading it drew random numbers, and whether it had side effects, which are undone.
    on_draw : callable, optional
        Called when loading a later batch drew random numbers, with whether only Python's `random` did.
    shared : bool
        Whether other ranks load other samples of each batch.
    """

    def __init__(
        self,
        make: Callable[[Any], Any],
        loader: DataLoader[Any],
        stream: LoadingStream | None,
        *,
        on_first: Callable[[bool, bool], None] | None,
        on_draw: Callable[[bool], None] | None,
        shared: bool,
    ) -> None:
        self._batches_drawn = _batches_of(loader)
        super().__init__(make, loader, self._batches_drawn.next_share)
        self._stream, self._on_first, self._on_draw, self._shared = stream, on_first, on_draw, shared

    def _state(self) -> FetchState | None:
        """Return the state in this process before the first batch, which loading may change; ``None`` if not needed."""
        if self._on_first is None or self._loader.num_workers or not self._shared:
            return None
        return FetchState(self._loader.dataset, self._loader.collate_fn)

    def __next__(self) -> Loaded:
        """Return the rank's part of the next batch; an error that the cell may catch is that of the batch's first bad sample."""
        failed: BaseException | None = None
        caught = self._shared and may_be_caught()
        try:
            loaded = self._next()
        except (StopIteration, UnknownBatch, CutAfterLoading):
            raise  # raised on all ranks
        except (Exception, FailedElsewhere) as error:
            if not caught:
                note(error)
                raise
            failed = error
        if caught:
            raise_if_any(failures_of(failed), failed)
        return loaded

    def _next(self) -> Loaded:
        batches = self._batches_drawn
        if batches.before_taking is not None and batches.pending:
            share, indices = batches.pending[0]
            batches.before_taking(indices, share)
        late = self._on_draw if self._on_first is None else None
        before = self._stream.state_dict() if self._stream is not None and (self._on_first or late) else None
        state = self._state()
        drew = False
        try:
            with nullcontext() if self._stream is None else self._stream.loading(), self._passed_over():
                batch = next(self._batches)
            if isinstance(batch, Told):
                drew, batch = batch.streams is not None, batch.batch
        finally:
            drew |= before is not None and self._stream is not None and not self._stream.state_dict().equals(before)
            if drew and late is not None:
                after = None if self._stream is None else self._stream.state_dict()
                late(before is not None and after is not None and after.equals_but_pythons(before))
        if self._on_first is not None:
            changed = state is not None and state.changed()
            if state is not None and changed:
                state.restore()
            with self._passed_over():
                self._on_first(drew, changed)
            self._on_first = None
        return self._share(batch)

    @contextmanager
    def _passed_over(self) -> Iterator[None]:
        """Drop the pending batch if the ``with`` block fails, as its indices were drawn."""
        try:
            yield
        except (StopIteration, UnknownBatch, CutAfterLoading):
            raise
        except (Exception, FailedElsewhere):
            if self._batches_drawn.pending:
                self._batches_drawn.pending.pop(0)
            raise


def of_own_samples(
    loader: DataLoader[Any],
    *,
    share: Callable[[int], BatchShard],
    stream: LoadingStream | None,
    collation: Collation | None,
    watch: bool,
    check: Check | None,
) -> DataLoader[Any]:
    """Return a copy of `loader` that loads the rank's part of each batch; with `watch`, its workers report whether they draw.

    `check` is called with each batch before this process loads it, or before it is taken from a worker.
    """
    made = with_batches(loader, BatchSamplerShard(loader.batch_sampler, share, stream, collation))
    batches = _batches_of(made)
    batches.before_loading, batches.before_taking = (None, check) if loader.num_workers else (check, None)
    if collation is not None:
        made = copy_of(made, collate_fn=partial(collated_if_possible, loader.collate_fn))
    if watch and loader.num_workers:
        teller = WorkerRngReporter(made)
        made = copy_of(made, worker_init_fn=teller.start, collate_fn=teller.collate)
    return made


def as_it_is(batch: Any) -> Loaded:
    """Return a batch uncut, without a share or layout."""
    return batch, None, None


def forget_pending(loader: DataLoader[Any]) -> None:
    """Prepare a loader made by `of_own_samples` for a new iteration."""
    _batches_of(loader).pending.clear()


def may_draw(loader: DataLoader[Any]) -> bool:
    """Return whether loading a batch may draw random numbers; false for rows of tensors, which saves the time to find out."""
    return not has_rows(loader)


def _batches_of(loader: DataLoader[Any]) -> BatchSamplerShard:
    batches = loader.batch_sampler
    assert isinstance(batches, BatchSamplerShard)
    return batches


class BatchSamplerShard:
    """A batch sampler that yields the rank's part of each batch of another.

    ``iter()`` of the other is called at once, as PyTorch does before it draws the loader's seed, because it may draw random numbers.
    """

    def __init__(self, batches: Any, share: Callable[[int], BatchShard], stream: LoadingStream | None, collation: Collation | None) -> None:
        self._batches = batches
        self._collation = collation
        self._share = share
        self._stream = stream
        self.before_loading: Check | None = None
        self.before_taking: Check | None = None
        self.pending: list[tuple[BatchShard, Any]] = []  # batches with drawn indices whose samples have not arrived

    def __iter__(self) -> Iterator[Any]:
        with self._drawing():
            batches = iter(self._batches)
        return self._shares(batches)

    def _drawing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else self._stream.drawing()

    def _shares(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._drawing():
                indices = next(batches, None)
            if indices is None:
                return
            if not isinstance(indices, Sequence | np.ndarray | torch.Tensor):
                indices = list(indices)  # a set, a generator: loaders only require an iterable
            share = self._share(len(indices))
            if self.before_loading is not None:
                self.before_loading(indices, share)
            self.pending.append((share, indices))
            yield indices[share.loaded]

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def next_share(self, batch: Any) -> Loaded:
        """Return the rank's part of the next pending batch; `batch` is what was loaded for it."""
        share, indices = self.pending.pop(0)
        return (batch, share, None) if self._collation is None else self._collation.local_shard(batch, share, indices)
