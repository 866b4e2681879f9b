"""Data loaders that give a rank its share of every global batch.

The user's loader stays what it is: same object, same length, same batches in the same order. Only what an iteration
yields is cut. For map-style data the cut is made on the batch of *indices*, so a rank loads no sample that is not its
own, with the user's sampler, workers and pinning; the sampler draws the numbers that it would have
drawn on one process. What has no batches of indices (iterable data) is cut after loading. What is in a batch is known where PyTorch's
own function has collated it; `collation` finds it out for another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from ..capture.bundle import RandomState
from .batches import Layout, UnknownBatch, cut, length_of
from .collation import Agree, Collation, CutAfterLoading, is_default
from .cursors import Begin, Cursor, CursorLog, LoaderIterator, Moment
from .index_batches import JoinedBatches, with_batches
from .randomness import LoadingStream
from .shares import Share
from .streams import Stream, Streams

Place = Callable[[Any, Share, Layout | None], Any]
Loaded = tuple[Any, Share | None, Layout | None]
OnBatch = Callable[[Share | None, int, int | None], None]


class SharedLoaders:
    """Splits the batches of loaders while the run says so.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of a given size.
    training : callable
        Whether an iteration that starts now is for training.
    split_evaluation : callable
        Whether another iteration that starts now is to be split as well.
    together : int
        How many batches of a loader make one of the run's.
    place : callable
        Returns the rank's part of a batch as the cell is to see it; raises `UnknownBatch` for one that cannot be split.
    agree : callable, optional
        Returns all ranks' values of what is given, a collective; ``None`` where there is one rank.
    on_batch : callable
        Told of every batch in training just before the cell gets it: its share (``None``: it is whole), its number from 1, and
        how many there are (``None``: not known).
    on_whole : callable
        Told before every batch of a loader that is not split.
    on_unknown : callable
        Told the type in a batch that keeps a loader from being split.
    on_order : callable
        Told on all ranks that the order of the samples of a loader that is split is about to be drawn.
    streams : Streams, optional
        Shares out the workers of iterable data; ``None`` where there is one rank.
    stream : LoadingStream, optional
        What samples that are the rank's own draw from; ``None``: from the cell's.
    cursors : CursorLog, optional
        Told of every iteration that begins, so that a run can go on in the midst of it.
    """

    def __init__(
        self,
        *,
        share: Callable[[int], Share],
        training: Callable[[], bool],
        split_evaluation: Callable[[], bool],
        together: int,
        place: Place,
        agree: Agree | None,
        on_batch: OnBatch,
        on_whole: Callable[[], None],
        on_unknown: Callable[[str], None],
        on_order: Callable[[], None],
        streams: Streams | None,
        stream: LoadingStream | None,
        cursors: CursorLog | None = None,
    ) -> None:
        self._cursors = cursors
        self._share = share
        self._training = training
        self._split_evaluation = split_evaluation
        self.together = together
        self._place = place
        self._agree = agree
        self._on_batch = on_batch
        self._on_whole = on_whole
        self._on_unknown = on_unknown
        self._on_order = on_order
        self._streams = streams
        self._stream = stream
        self._joined: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()
        self._inner: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()
        self._collations: WeakKeyDictionary[DataLoader[Any], Collation] = WeakKeyDictionary()
        self._known: WeakSet[DataLoader[Any]] = WeakSet()  # whose batches can be split
        self._whole: WeakSet[DataLoader[Any]] = WeakSet()  # whose batches cannot

    def iterate(self, original: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any]) -> LoaderIterator:
        """Return an iterator over `loader`; `original` is the loader's own ``__iter__``."""
        if self._cursors is not None and (before := self._cursors.again()) is not None:
            return LoaderIterator(replace(before, loader=loader), pretended=before.taken, log=self._cursors)
        training = self._training()
        split = training or self._split_evaluation()
        if split:
            self._on_order()
        cursor = Cursor(loader, training, split, Moment(loader))
        if self._cursors is not None:
            self._cursors.note(cursor)
        return LoaderIterator(cursor, self._batches(original, loader, training=training, split=cursor.split))

    def go_on(
        self, original: Callable[[DataLoader[Any]], Any], cursor: Cursor, loader: DataLoader[Any], begin: Begin
    ) -> _SplitIterator | _Watched:
        """Return the batches that are left of an iteration; `loader` lacks the others where its sampler can leave them out."""
        batches: _SplitIterator | _Watched = begin(lambda: self._batches(original, loader, training=cursor.training, split=cursor.split))
        to_load = cursor.taken if isinstance(loader.dataset, torch.utils.data.IterableDataset) else 0

        def begin_again(start: Callable[[], None]) -> None:
            present = Moment(cursor.loader)
            begin(start)
            batches.skip(to_load)
            present.set()

        if isinstance(batches, _SplitIterator):
            batches.count = cursor.taken
            batches.begin_again = begin_again
        batches.skip(to_load)
        return batches

    def _batches(
        self, original: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any], *, training: bool, split: bool
    ) -> _SplitIterator | _Watched:
        loader = self._with_joined_batches(loader)
        if not split:
            return _Watched(original(loader), self._on_whole)
        whole = _Source(original, loader, _is_whole)
        collation = self._collation(loader)
        source: _Source | Stream = whole
        if loader in self._whole:
            pass
        elif _has_index_batches(loader):
            if collation is None or not collation.is_whole:
                inner, batches = self._by_index(loader, collation)
                source = _Source(original, inner, batches.next_share, self._stream if _may_draw(loader) else None)
            else:
                source = _Source(original, loader, collation.of_whole)
        elif self._streams is not None and self._streams.can_share_out(loader):
            source = self._streams.source(original, loader)
        elif self._agree is None or (is_default(loader) and loader.batch_sampler is not None):
            source = _Source(original, loader, self._cut_loaded)
        else:
            # One batch does not say where its samples are.
            self._whole.add(loader)
            self._on_unknown("structure of its own")
        on_batch: OnBatch = self._on_batch if training else lambda *_: self._on_whole()
        first = None if loader in self._known else self._first(original, loader, whole)
        return _SplitIterator(source, _length(loader), self._place, on_batch, first)

    def length(self, original: Callable[[DataLoader[Any]], int], loader: DataLoader[Any]) -> int:
        """Return how many batches the run makes of those of `loader`; `original` is the loader's own ``__len__``."""
        number = original(loader)
        return number if loader.batch_sampler is None or isinstance(loader.batch_sampler, JoinedBatches) else -(-number // self.together)

    def _with_joined_batches(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        if self.together == 1 or loader.batch_sampler is None:
            return loader
        if loader not in self._joined:
            self._joined[loader] = with_batches(loader, JoinedBatches(loader.batch_sampler, self.together))
            if loader.batch_size is not None:  # the length of iterable data is reckoned from it
                self._joined[loader].__dict__["batch_size"] = loader.batch_size * self.together
        return self._joined[loader]

    def _collation(self, loader: DataLoader[Any]) -> Collation | None:
        if self._agree is None or is_default(loader):
            return None
        if loader not in self._collations:
            self._collations[loader] = Collation(loader, self._share, self._agree)
        return self._collations[loader]

    def _first(self, original: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any], whole: _Source) -> _First:
        """Return what to do with the first batch of a loader: remember that it can be split, or begin again with whole ones."""
        streams = [stream for stream in (loader.generator, getattr(loader.sampler, "generator", None)) if stream is not None]
        states = [stream.get_state() for stream in streams]
        random_state = RandomState.now()

        def decide(error: UnknownBatch | CutAfterLoading | None) -> _Source:
            if error is None:
                self._known.add(loader)
                return whole
            for stream, state in zip(streams, states, strict=True):
                stream.set_state(state)
            random_state.set()
            if isinstance(error, CutAfterLoading):
                self._known.add(loader)
                return _Source(original, loader, self._collations[loader].of_whole)
            self._whole.add(loader)
            self._on_unknown(str(error))
            return whole

        return decide

    def _by_index(self, loader: DataLoader[Any], collation: Collation | None) -> tuple[DataLoader[Any], _ShareOfBatches]:
        inner = self._inner.get(loader)
        if inner is None or not loader.persistent_workers:
            inner = with_batches(loader, _ShareOfBatches(loader.batch_sampler, self._share, self._stream, collation))
            self._inner[loader] = inner
        batches = inner.batch_sampler
        assert isinstance(batches, _ShareOfBatches)
        batches.pending.clear()
        return inner, batches

    def _cut_loaded(self, batch: Any) -> Loaded:
        total = length_of(batch)
        if total is None:
            if self._agree is None:
                return _is_whole(batch)
            raise UnknownBatch(type(batch).__name__)
        share = self._share(total)
        return cut(batch, share.loaded), share, None


class _ShareOfBatches:
    """A batch sampler that yields the rank's part of each batch of another."""

    def __init__(self, batches: Any, share: Callable[[int], Share], stream: LoadingStream | None, collation: Collation | None) -> None:
        self._batches = batches
        self._collation = collation
        self._share = share
        self._stream = stream
        self.pending: list[tuple[Share, Any]] = []  # batches whose indices were drawn and whose samples have not arrived yet

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._batches)
        while True:
            with nullcontext() if self._stream is None else self._stream.drawing():
                indices = next(batches, None)
            if indices is None:
                return
            if not isinstance(indices, Sequence | np.ndarray | torch.Tensor):
                indices = list(indices)  # a set, a generator: all that a loader asks is to walk over them
            share = self._share(len(indices))
            self.pending.append((share, indices))
            yield indices[share.loaded]

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def next_share(self, batch: Any) -> Loaded:
        share, indices = self.pending.pop(0)
        return (batch, share, None) if self._collation is None else self._collation.own(batch, share, indices)


def _is_whole(batch: Any) -> Loaded:
    return batch, None, None


class _Source:
    """Where the batches of one iteration come from, and whose share each is. Starts when it is first asked."""

    def __init__(
        self,
        make: Callable[[Any], Any],
        loader: DataLoader[Any],
        share: Callable[[Any], Loaded],
        stream: LoadingStream | None = None,
    ) -> None:
        self._make, self._loader, self._share, self._stream = make, loader, share, stream
        self._batches: Any = None

    def start(self) -> None:
        self._batches = self._make(self._loader)

    def __next__(self) -> Loaded:
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

    def skip(self, num: int) -> None:
        """Load batches for nobody."""
        for _ in range(num):
            next(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


_First = Callable[[UnknownBatch | CutAfterLoading | None], _Source]


class _SplitIterator:
    """The iterator that the cell holds."""

    def __init__(
        self,
        source: _Source | Stream,
        length: int | None,
        place: Place,
        on_batch: OnBatch,
        first: _First | None,
    ) -> None:
        source.start()  # draws random numbers where one process would
        self._source: _Source | Stream = source
        self._length = length
        self._place = place
        self._on_batch = on_batch
        self._first = first
        self.count = 0
        self.begin_again: Callable[[Callable[[], None]], None] = lambda start: start()

    def __iter__(self) -> _SplitIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch, share = self._placed()
        except (UnknownBatch, CutAfterLoading) as error:
            if self._first is None:
                raise TypeError(f"this batch of the loader holds a {error}, unlike the ones before: it cannot be split") from None
            self.begin_again(partial(self._start_over, error))
            batch, share = self._placed()
        else:
            if self._first is not None:
                self._first(None)
        self._first = None
        self.count += 1
        self._on_batch(share, self.count, self._length)
        return batch

    def _start_over(self, error: UnknownBatch | CutAfterLoading) -> None:
        assert self._first is not None
        self._source = self._first(error)
        self._source.start()

    def skip(self, num: int) -> None:
        """Load batches for nobody."""
        for _ in range(num):
            next(self._source)

    def _placed(self) -> tuple[Any, Share | None]:
        batch, share, layout = next(self._source)
        return (batch if share is None else self._place(batch, share, layout)), share

    def __len__(self) -> int:
        return len(self._source)


def _may_draw(loader: DataLoader[Any]) -> bool:
    """Return whether loading a batch may draw random numbers in this process: to exchange streams takes longer than to index a tensor."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return loader.num_workers == 0 and not (type(dataset) is TensorDataset and is_default(loader))


def _has_index_batches(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is not None and not isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # iterable data without a length
        return None
