"""Data loaders that give a rank its share of every global batch.

The user's loader stays what it is: same object, same length, same batches in the same order. Only what an iteration
yields is cut. For map-style data the cut is made on the batch of *indices*, so a rank loads no sample that is not its
own, with the user's sampler, workers and pinning; the sampler draws the numbers that it would have
drawn on one process. What has no batches of indices (iterable data), and what is loaded with random numbers, is cut after loading. What
is in a batch is known where PyTorch's own function has collated it; `collation` finds it out for another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils.data import DataLoader

from ..rng.streams import LoadingStream
from ..tensor.batch_shard import BatchShard
from .batch_layout import UnknownBatch, cut, length_of
from .collate import Agree, Collation, CutAfterLoading, is_default
from .effects import has_effects
from .fetch import Make, copy_of, taking_rows
from .iterable import Stream, Streams
from .iterator_state import Begin, IteratorLog, IteratorState, LoaderIterator, SourceState
from .own_iterators import iterates_itself
from .sharded_iterator import FirstBatch, OnBatch, Place, SplitBatches, WatchedBatches
from .sources import (
    Check,
    JoinedBatches,
    Loaded,
    LoaderShard,
    Source,
    as_it_is,
    draws_by_itself,
    forget_pending,
    may_draw,
    of_own_samples,
    with_batches,
)
from .worker_rng import can_live, iterate, living, set_living, with_attributes


class Checks(Protocol):
    """Who compares what ranks load alone with whole batches."""

    def needs_whole(self, loader: DataLoader[Any]) -> bool:
        """Return whether it is known that a loader's batches are not to be loaded by parts."""

    def differs(self, loader: DataLoader[Any], indices: Any, share: BatchShard) -> bool:
        """Look at a batch that is about to be loaded; return whether every rank has to load all of it."""

    def undo(self, loader: DataLoader[Any]) -> None:
        """Let all be as it was before the batch of which :meth:`differs` said so."""


class ShardedLoaders:
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
    on_other : callable
        Told of the share of every other batch, in evaluation.
    on_unknown : callable
        Told the type in a batch that keeps a loader from being split.
    on_order : callable
        Told on all ranks that the order of the samples of a loader that is split is about to be drawn.
    streams : Streams, optional
        Shares out the workers of iterable data; ``None`` where there is one rank.
    stream : LoadingStream, optional
        What samples that are the rank's own draw from; ``None``: from the cell's.
    whole_draws : bool
        Whether random numbers that are drawn to load samples are those of one process, for which every rank loads whole batches.
    on_training : callable, optional
        Told of every loader that the cell trains on, and how many of its batches make one of the run's.
    cursors : IteratorLog, optional
        Told of every iteration that begins, so that a run can go on in the midst of it.
    checks : Checks, optional
        Compares what ranks load alone with whole batches.
    """

    def __init__(
        self,
        *,
        share: Callable[[int], BatchShard],
        training: Callable[[], bool],
        split_evaluation: Callable[[], bool],
        together: int,
        place: Place,
        agree: Agree | None,
        on_batch: OnBatch,
        on_other: Callable[[BatchShard | None], None],
        on_unknown: Callable[[str], None],
        on_order: Callable[[], None],
        streams: Streams | None,
        stream: LoadingStream | None,
        whole_draws: bool,
        on_training: Callable[[DataLoader[Any], int], None] = lambda _loader, _together: None,
        cursors: IteratorLog | None = None,
        checks: Checks | None = None,
    ) -> None:
        self._cursors, self._checks = cursors, checks
        self._share = share
        self._training = training
        self._split_evaluation = split_evaluation
        self.together = together
        self._place, self._on_training = place, on_training
        self._agree = agree
        self._on_batch = on_batch
        self._on_other = on_other
        self._on_unknown = on_unknown
        self._on_order = on_order
        self._streams = streams
        self._stream = stream
        self._whole_draws = whole_draws
        self._joined: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()
        self._inner: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()
        self._collations: WeakKeyDictionary[DataLoader[Any], Collation] = WeakKeyDictionary()
        self._known: WeakSet[DataLoader[Any]] = WeakSet()  # whose batches can be split
        self._whole: WeakSet[DataLoader[Any]] = WeakSet()  # whose batches cannot
        self._drawing: WeakSet[DataLoader[Any]] = WeakSet()  # whose samples are loaded with random numbers
        self._remembering: WeakSet[DataLoader[Any]] = WeakSet()  # whose loading leaves something behind
        self._collates: WeakKeyDictionary[DataLoader[Any], Callable[[Any], Any]] = WeakKeyDictionary()  # which all this is known of

    def iterate(self, original: Make, loader: DataLoader[Any]) -> LoaderIterator:
        """Return an iterator over `loader`; `original` is the loader's own ``__iter__``."""
        if self._cursors is not None and (before := self._cursors.restored_state()) is not None:
            return LoaderIterator(replace(before, loader=loader), pretended=before.taken, log=self._cursors)
        training = self._training()
        if training:
            self._on_training(loader, self.together)
        split = training or self._split_evaluation()
        if split:
            self._on_order()
        cursor = IteratorState(loader, training, split, SourceState(loader), living=living(loader))
        if self._cursors is not None:
            self._cursors.note(cursor)
        return LoaderIterator(cursor, self._batches(original, loader, cursor))

    def go_on(self, original: Make, cursor: IteratorState, loader: DataLoader[Any], begin: Begin) -> SplitBatches | WatchedBatches:
        """Return the batches that are left of an iteration; `loader` lacks the others where its sampler can leave them out."""
        set_living(cursor.loader, cursor.living)
        if cursor.draws_in_workers:
            self._drawing.add(self._with_joined_batches(loader))
        batches: SplitBatches | WatchedBatches = begin(lambda: self._batches(original, loader, cursor))
        to_load = cursor.taken if cursor.has_to_load else 0

        def begin_again(start: Callable[[], None], asked: SourceState | None = None) -> None:
            present = SourceState(cursor.loader)
            begin(start)  # where the order is drawn as well
            batches.skip(to_load)
            present.set()
            if asked is not None:
                asked.set_collate()

        if isinstance(batches, SplitBatches):
            batches.count = cursor.taken
            batches.begin_again = begin_again
        batches.skip(to_load)
        return batches

    def _batches(self, its_own: Make, loader: DataLoader[Any], cursor: IteratorState) -> SplitBatches | WatchedBatches:
        self._forget_other_collate(loader)
        make, loader = taking_rows(its_own), self._with_joined_batches(loader)

        def note_draws() -> None:
            cursor.draws_in_workers = True

        def original(used: DataLoader[Any]) -> Any:
            if cursor.split and not can_live(cursor.loader):
                return make(used)  # what is split is looked at anyway
            return iterate(make, used, cursor.loader, before=cursor.living, on_draw=note_draws)

        if not cursor.split:
            cursor.draws_in_workers |= loader.num_workers > 0 and has_effects(loader)
            return WatchedBatches(original(loader), partial(self._on_other, None))
        whole = Source(original, loader, as_it_is)
        source = whole if loader in self._whole else self._source(original, loader, cursor)
        if source is None:
            # One batch does not say where its samples are.
            source = whole
            self._whole.add(loader)
            self._on_unknown("structure of its own")
        on_batch: OnBatch = self._on_batch if cursor.training else lambda share, *_: self._on_other(share)
        first = None if loader in self._known else self._first(original, loader, whole, cursor)
        return SplitBatches(source, _length(loader), self._place, on_batch, first)

    def _source(self, original: Make, loader: DataLoader[Any], cursor: IteratorState) -> Source | Stream | None:
        """Return where the rank's parts of batches come from; ``None`` where it is not known how to cut them."""
        if _has_index_batches(loader):
            collation = self._collation(loader)
            if self._remembers(loader):
                cursor.draws_in_workers = loader.num_workers > 0  # what their copies remember is of this iteration
                return self._of_whole(original, loader, cursor)
            if collation is not None and collation.is_whole:
                return self._of_whole(original, loader, cursor)
            if self._draws(loader):
                cursor.draws_in_workers = loader.num_workers > 0
                if collation is None and self._agree is not None:
                    return self._of_whole(original, loader, cursor)
            new = may_draw(loader) and loader not in self._known and (self._agree is not None or self._whole_draws)
            watch = new and self._whole_draws and collation is None
            stream = self._stream if loader.num_workers == 0 and may_draw(loader) else None
            return LoaderShard(
                original,
                self._of_own_samples(loader, collation, watch=watch),
                stream,
                on_first=self._ask_all(loader, cursor, watch=watch) if new else None,
                shared=self._agree is not None,
            )
        if self._streams is not None and not iterates_itself(loader) and self._streams.can_share_out(loader):
            return self._streams.source(original, loader)
        if self._agree is None or (is_default(loader) and loader.batch_sampler is not None):
            return Source(original, loader, self._cut_loaded)
        return None

    def _of_whole(self, original: Make, loader: DataLoader[Any], cursor: IteratorState) -> Source:
        """Return a source that cuts batches which are loaded whole."""
        cursor.draws_in_workers |= loader in self._drawing and loader.num_workers > 0
        if loader not in self._collations:
            return Source(original, loader, self._cut_whole if loader in self._remembering else self._cut_loaded)
        collation = self._collations[loader]
        if loader not in self._remembering:
            return Source(original, loader, collation.of_whole)
        return Source(*self._probing(original, loader, collation), collation.of_probed)

    def _probing(self, original: Make, loader: DataLoader[Any], collation: Collation) -> tuple[Make, DataLoader[Any]]:
        """Return a loader that learns how its batches can be cut, until that is known, and what makes its iterator.

        Workers that live on are those of one copy, and a loader that iterates by itself is no copy.
        """
        if loader.persistent_workers and loader in self._inner:
            return original, self._inner[loader]
        if (probe := collation.probe()) is None:
            return original, loader
        if iterates_itself(loader):
            return partial(with_attributes, original, collate_fn=probe), loader
        self._inner[loader] = copy_of(loader, collate_fn=probe)
        return original, self._inner[loader]

    def _remembers(self, loader: DataLoader[Any]) -> bool:
        """Return whether each rank loads what one process would: loading leaves something behind, or the loader iterates by itself."""
        if loader not in self._remembering and (iterates_itself(loader) or (self._agree is not None and has_effects(loader))):
            self._remembering.add(loader)
        return loader in self._remembering

    def _draws(self, loader: DataLoader[Any]) -> bool:
        """Return whether it is known that samples are loaded with random numbers, which are to be those of one process."""
        is_new = loader not in self._known
        if (self._whole_draws and is_new and draws_by_itself(loader)) or (self._checks is not None and self._checks.needs_whole(loader)):
            self._drawing.add(loader)
        return loader in self._drawing

    def _ask_all(self, loader: DataLoader[Any], cursor: IteratorState, *, watch: bool) -> Callable[[bool, bool], None]:
        """Return what finds out, at the first batch, whether any rank has left something behind to load it, or drawn random numbers."""

        def ask(drew: bool, changed: bool) -> None:
            told = (drew and watch, changed)
            drawn, changes = zip(*(self._agree(told) if self._agree is not None else [told]), strict=True)
            if any(changes) and self._agree is not None:
                self._remembering.add(loader)
            elif not any(drawn):
                return
            if any(drawn):
                self._drawing.add(loader)
            cursor.draws_in_workers = loader.num_workers > 0
            if self._agree is not None:
                raise CutAfterLoading

        return ask

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

    def _forget_other_collate(self, loader: DataLoader[Any]) -> None:
        """Know nothing of a loader that has got another collate function since; workers that stay go on with the one that they have."""
        collate = self._collates.setdefault(loader, loader.collate_fn)
        if collate == loader.collate_fn or loader.persistent_workers:
            return
        self._collates[loader] = loader.collate_fn
        for used in (loader, self._joined.pop(loader, loader)):
            self._inner.pop(used, None)
            self._collations.pop(used, None)
            for known in (self._known, self._whole, self._drawing, self._remembering):
                known.discard(used)

    def _collation(self, loader: DataLoader[Any]) -> Collation | None:
        if self._agree is None or is_default(loader):
            return None
        if loader not in self._collations:
            self._collations[loader] = Collation(
                loader, self._share, self._agree, whole_draws=self._whole_draws, on_unknown=self._on_unknown
            )
        return self._collations[loader]

    def _first(self, original: Make, loader: DataLoader[Any], whole: Source, cursor: IteratorState) -> FirstBatch:
        """Return what to do with the first batch of a loader: remember that it can be split, or begin again with whole ones."""
        start = SourceState(loader)

        def decide(error: UnknownBatch | CutAfterLoading | None) -> Source:
            if error is None:
                self._known.add(loader)
                return whole
            if self._checks is not None:
                self._checks.undo(loader)
            start.set()
            if isinstance(error, CutAfterLoading):
                self._known.add(loader)
                if loader in self._collations and self._collations[loader].draws:
                    self._drawing.add(loader)
                return self._of_whole(original, loader, cursor)
            self._whole.add(loader)
            self._on_unknown(str(error))
            return whole

        return FirstBatch(partial(SourceState, loader), decide)

    def _of_own_samples(self, loader: DataLoader[Any], collation: Collation | None, *, watch: bool) -> DataLoader[Any]:
        inner = self._inner.get(loader)
        if inner is None or not loader.persistent_workers:
            inner = of_own_samples(
                loader, share=self._share, stream=self._stream, collation=collation, watch=watch, check=self._check(loader, collation)
            )
            self._inner[loader] = inner
        forget_pending(inner)
        return inner

    def _check(self, loader: DataLoader[Any], collation: Collation | None) -> Check | None:
        """Return what looks at batches before they are loaded: those that every rank is to load whole are from then on."""
        checks = self._checks
        if checks is None or not may_draw(loader):
            return None

        def check(indices: Any, share: BatchShard) -> None:
            if checks.differs(loader, indices, share):
                self._drawing.add(loader)
                if collation is None:
                    raise CutAfterLoading
                collation.is_whole = True

        return check

    def _cut_whole(self, batch: Any) -> Loaded:
        """Return the rank's part of a batch that cannot be loaded another time, or all of one that cannot be cut."""
        try:
            return self._cut_loaded(batch)
        except UnknownBatch as error:
            self._on_unknown(str(error))
            return as_it_is(batch)

    def _cut_loaded(self, batch: Any) -> Loaded:
        total = length_of(batch)
        if total is None:
            if self._agree is None:
                return as_it_is(batch)
            raise UnknownBatch(type(batch).__name__)
        share = self._share(total)
        return cut(batch, share.loaded), share, None


def _has_index_batches(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is not None and not isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # iterable data without a length
        return None
