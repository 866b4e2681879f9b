"""Data loaders that give a rank its share of every global batch.

The user's loader stays what it is: same object, same length, same batches in the same order. Only what an iteration
yields is cut. For map-style data the cut is made on the batch of *indices*, so a rank loads no sample that is not its
own, with the user's sampler, workers, collate function and pinning; the sampler draws the numbers that it would have
drawn on one process. What has no batches of indices (iterable data, batches made by the data set) is cut after loading.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import DataLoader

from ..capture.bundle import RandomState
from .batches import UnknownBatch, cut, length_of
from .randomness import LoadingStream
from .shares import Share

Place = Callable[[Any, Share], Any]
OnBatch = Callable[[Share | None, int, int | None], None]


class SharedLoaders:
    """Splits the batches of loaders while the run says so.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of a given size.
    split_now : callable
        Whether an iteration that starts now is to be split.
    place : callable
        Returns the rank's part of a batch as the cell is to see it; raises `UnknownBatch` for one that cannot be split.
    on_batch : callable
        Told of every batch in training just before the cell gets it: its share (``None``: it is whole), its number from 1, and
        how many there are (``None``: not known).
    on_whole : callable
        Told before every batch of a loader that is not split.
    on_unknown : callable
        Told the type in a batch that keeps a loader from being split.
    stream : LoadingStream, optional
        What samples that are the rank's own draw from; ``None``: from the cell's.
    """

    def __init__(
        self,
        *,
        share: Callable[[int], Share],
        split_now: Callable[[], bool],
        place: Place,
        on_batch: OnBatch,
        on_whole: Callable[[], None],
        on_unknown: Callable[[str], None],
        stream: LoadingStream | None,
    ) -> None:
        self._share = share
        self._split_now = split_now
        self._place = place
        self._on_batch = on_batch
        self._on_whole = on_whole
        self._on_unknown = on_unknown
        self._stream = stream
        self._inner: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()
        self._known: WeakSet[DataLoader[Any]] = WeakSet()  # whose batches can be split
        self._whole: WeakSet[DataLoader[Any]] = WeakSet()  # whose batches cannot

    def iterate(self, original: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any]) -> Iterator[Any]:
        """Return an iterator over `loader`; `original` is the loader's own ``__iter__``."""
        if not self._split_now():
            return _Watched(original(loader), self._on_whole)
        whole = _Source(original, loader, _is_whole)
        if loader in self._whole:
            source = whole
        elif _has_index_batches(loader):
            inner, batches = self._by_index(loader)
            source = _Source(original, inner, batches.next_share, self._stream)
        else:
            source = _Source(original, loader, self._cut_loaded)
        return _SplitIterator(
            source, _length(loader), self._place, self._on_batch, None if loader in self._known else self._first(loader, whole)
        )

    def _first(self, loader: DataLoader[Any], whole: _Source) -> Callable[[UnknownBatch | None], _Source]:
        """Return what to do with the first batch of a loader: remember that it can be split, or begin again with whole ones."""
        streams = [stream for stream in (loader.generator, getattr(loader.sampler, "generator", None)) if stream is not None]
        states = [stream.get_state() for stream in streams]
        random_state = RandomState.now()

        def decide(error: UnknownBatch | None) -> _Source:
            if error is None:
                self._known.add(loader)
                return whole
            self._whole.add(loader)
            self._on_unknown(str(error))
            for stream, state in zip(streams, states, strict=True):
                stream.set_state(state)
            random_state.set()
            return whole

        return decide

    def _by_index(self, loader: DataLoader[Any]) -> tuple[DataLoader[Any], _ShareOfBatches]:
        inner = self._inner.get(loader)
        if inner is None or not loader.persistent_workers:
            inner = copy.copy(loader)
            # DataLoader forbids to set these after it was made; the copy has made nothing yet.
            inner.__dict__["batch_sampler"] = _ShareOfBatches(loader.batch_sampler, self._share, self._stream)
            inner.__dict__["_iterator"] = None
            self._inner[loader] = inner
        batches = inner.batch_sampler
        assert isinstance(batches, _ShareOfBatches)
        batches.shares.clear()
        return inner, batches

    def _cut_loaded(self, batch: Any) -> tuple[Any, Share | None]:
        total = length_of(batch)
        if total is None:
            raise UnknownBatch(type(batch).__name__)
        share = self._share(total)
        return cut(batch, share.loaded, total), share


class _ShareOfBatches:
    """A batch sampler that yields the rank's part of each batch of another."""

    def __init__(self, batches: Any, share: Callable[[int], Share], stream: LoadingStream | None) -> None:
        self._batches = batches
        self._share = share
        self._stream = stream
        self.shares: list[Share] = []  # of batches whose indices were drawn and whose samples have not arrived yet

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self._batches)
        while True:
            with nullcontext() if self._stream is None else self._stream.drawing():
                indices = next(batches, None)
            if indices is None:
                return
            share = self._share(len(indices))
            self.shares.append(share)
            yield indices[share.loaded]

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def next_share(self, batch: Any) -> tuple[Any, Share]:
        return batch, self.shares.pop(0)


def _is_whole(batch: Any) -> tuple[Any, None]:
    return batch, None


class _Source:
    """Where the batches of one iteration come from, and whose share each is. Starts when it is first asked."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        loader: DataLoader[Any],
        share: Callable[[Any], tuple[Any, Share | None]],
        stream: LoadingStream | None = None,
    ) -> None:
        self._make, self._loader, self._share, self._stream = make, loader, share, stream
        self._batches: Any = None

    def start(self) -> None:
        self._batches = self._make(self._loader)

    def __next__(self) -> tuple[Any, Share | None]:
        with nullcontext() if self._stream is None else self._stream.loading():
            batch = next(self._batches)
        return self._share(batch)

    def __len__(self) -> int:
        return len(self._batches)


class _Watched:
    """The iterator of a loader that is not split."""

    def __init__(self, batches: Any, on_batch: Callable[[], None]) -> None:
        self._batches = batches
        self._on_batch = on_batch

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        self._on_batch()
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class _SplitIterator:
    """The iterator that the cell holds."""

    def __init__(
        self,
        source: _Source,
        length: int | None,
        place: Place,
        on_batch: OnBatch,
        first: Callable[[UnknownBatch | None], _Source] | None,
    ) -> None:
        source.start()  # draws random numbers where one process would
        self._source = source
        self._length = length
        self._place = place
        self._on_batch = on_batch
        self._first = first
        self._count = 0

    def __iter__(self) -> _SplitIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch, share = self._placed()
        except UnknownBatch as error:
            if self._first is None:
                raise TypeError(f"this batch of the loader holds a {error}, unlike the ones before: it cannot be split") from None
            self._source = self._first(error)
            self._source.start()
            batch, share = next(self._source)
        else:
            if self._first is not None:
                self._first(None)
        self._first = None
        self._count += 1
        self._on_batch(share, self._count, self._length)
        return batch

    def _placed(self) -> tuple[Any, Share | None]:
        batch, share = next(self._source)
        return (batch if share is None else self._place(batch, share)), share

    def __len__(self) -> int:
        return len(self._source)


def _has_index_batches(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is not None and not isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # iterable data without a length
        return None
