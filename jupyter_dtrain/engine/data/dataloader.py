"""Data loaders that give a rank its share of every global batch.

The user's loader stays what it is: same object, same length, same batches in the same order. Only what an iteration
yields is cut. For map-style data the cut is made on the batch of *indices*, so a rank loads no sample that is not its
own, with the user's sampler, workers and pinning; the sampler draws the numbers that it would have
drawn on one process. What has no batches of indices (iterable data), and what is loaded with random numbers, is cut after loading. What
is in a batch is known where PyTorch's own function has collated it; `collation` finds it out for another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from ..rng.streams import LoadingStream
from ..tensor.batch_shard import BatchShard
from .batch_layout import UnknownBatch, cut, length_of
from .collate import Agree, Collation, CutAfterLoading
from .effects import has_effects
from .fetch import Make, copy_of, taking_rows
from .iterable import Stream, Streams
from .iterator_state import Begin, IteratorLog, IteratorState, LoaderIterator, SourceState
from .loader_plan import Checks, Division, LoaderPlan, LoaderPlans
from .own_iterators import iterates_itself
from .sharded_iterator import FirstBatch, OnBatch, Place, SplitBatches, WatchedBatches
from .sources import (
    Check,
    JoinedBatches,
    Loaded,
    LoaderShard,
    Source,
    as_it_is,
    forget_pending,
    may_draw,
    of_own_samples,
)
from .worker_rng import can_live, iterate, living, set_living, with_attributes


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
        self._plans = LoaderPlans(
            together=together, share=share, agree=agree, whole_draws=whole_draws, checks=checks, on_unknown=on_unknown
        )

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
            self._plans.of(loader).draws = True
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
        plan = self._plans.of(loader)
        make, loader = taking_rows(its_own), self._plans.with_joined_batches(plan, loader)

        def note_draws() -> None:
            cursor.draws_in_workers = True

        def original(used: DataLoader[Any]) -> Any:
            if cursor.split and not can_live(cursor.loader):
                return make(used)  # what is split is looked at anyway
            return iterate(make, used, cursor.loader, before=cursor.living, on_draw=note_draws)

        if not cursor.split:
            cursor.draws_in_workers |= loader.num_workers > 0 and has_effects(loader)
            return WatchedBatches(original(loader), partial(self._on_other, None))
        iteration = _Iteration(original, loader, plan, cursor)
        on_batch: OnBatch = self._on_batch if cursor.training else lambda share, *_: self._on_other(share)
        return SplitBatches(self._source(iteration), _length(loader), self._place, on_batch, self._first(iteration))

    def _source(self, iteration: _Iteration) -> Source | Stream:
        """Return where the rank's parts of batches come from."""
        match self._plans.divide(iteration.plan, iteration.loader):
            case Division.OWN_SAMPLES:
                return self._own_samples(iteration)
            case Division.OWN_WORKERS:
                return self._own_workers(iteration)
            case Division.CUT:
                return self._cut_after_loading(iteration)
            case Division.FULL:
                return iteration.full()

    def _own_samples(self, iteration: _Iteration) -> LoaderShard:
        loader, plan = iteration.loader, iteration.plan
        iteration.note_draws()
        new = may_draw(loader) and not plan.is_known and (self._agree is not None or self._whole_draws)
        watch = new and self._whole_draws and plan.collation is None
        if plan.loading is None or not loader.persistent_workers:
            check = self._check(loader, plan)
            plan.loading = of_own_samples(
                loader, share=self._share, stream=self._stream, collation=plan.collation, watch=watch, check=check
            )
        forget_pending(plan.loading)
        return LoaderShard(
            iteration.make,
            plan.loading,
            self._stream if loader.num_workers == 0 and may_draw(loader) else None,
            on_first=self._ask_all(iteration, watch=watch) if new else None,
            shared=self._agree is not None,
        )

    def _own_workers(self, iteration: _Iteration) -> Stream:
        loader, plan, streams = iteration.loader, iteration.plan, self._streams
        assert streams is not None

        def workers() -> dict[int, DataLoader[Any]]:
            made = streams.own_workers(loader) if plan.own_workers is None else plan.own_workers
            if loader.persistent_workers:
                plan.own_workers = made
            return made

        return Stream(streams, iteration.make, loader, workers)

    def _cut_after_loading(self, iteration: _Iteration) -> Source:
        loader, plan = iteration.loader, iteration.plan
        iteration.note_draws()
        if plan.collation is None:
            return Source(iteration.make, loader, self._cut_if_possible if plan.leaves_effects else self._cut)
        if not plan.leaves_effects:
            return Source(iteration.make, loader, plan.collation.of_whole)
        return Source(*_probing(iteration, plan.collation), plan.collation.of_probed)

    def _ask_all(self, iteration: _Iteration, *, watch: bool) -> Callable[[bool, bool], None]:
        """Return what finds out, at the first batch, whether any rank has left something behind to load it, or drawn random numbers."""
        plan = iteration.plan

        def ask(drew: bool, changed: bool) -> None:
            told = (drew and watch, changed)
            drawn, changes = zip(*(self._agree(told) if self._agree is not None else [told]), strict=True)
            if any(changes) and self._agree is not None:
                plan.leaves_effects = True
            elif not any(drawn):
                return
            plan.draws |= any(drawn)
            iteration.note_draws()
            if self._agree is not None:
                raise CutAfterLoading

        return ask

    def length(self, original: Callable[[DataLoader[Any]], int], loader: DataLoader[Any]) -> int:
        """Return how many batches the run makes of those of `loader`; `original` is the loader's own ``__len__``."""
        number = original(loader)
        return number if loader.batch_sampler is None or isinstance(loader.batch_sampler, JoinedBatches) else -(-number // self.together)

    def _first(self, iteration: _Iteration) -> FirstBatch | None:
        """Return what to do with the first batch of a loader: remember that it can be split, or begin again with whole ones."""
        loader, plan = iteration.loader, iteration.plan
        if plan.is_known:
            return None
        start = SourceState(loader)

        def decide(error: UnknownBatch | CutAfterLoading | None) -> Source:
            if error is None:
                plan.is_known = True
                return iteration.full()
            if self._checks is not None:
                self._checks.undo(loader)
            start.set()
            if isinstance(error, CutAfterLoading):
                plan.is_known = True
                plan.draws |= plan.collation is not None and plan.collation.draws
                return self._cut_after_loading(iteration)
            plan.is_full = True
            self._on_unknown(str(error))
            return iteration.full()

        return FirstBatch(partial(SourceState, loader), decide)

    def _check(self, loader: DataLoader[Any], plan: LoaderPlan) -> Check | None:
        """Return what looks at batches before they are loaded: those that every rank is to load whole are from then on."""
        checks, collation = self._checks, plan.collation
        if checks is None or not may_draw(loader):
            return None

        def check(indices: Any, share: BatchShard) -> None:
            if checks.differs(loader, indices, share):
                plan.draws = True
                if collation is None:
                    raise CutAfterLoading
                collation.is_whole = True

        return check

    def _cut_if_possible(self, batch: Any) -> Loaded:
        """Return the rank's part of a batch that cannot be loaded another time, or all of one that cannot be cut."""
        try:
            return self._cut(batch)
        except UnknownBatch as error:
            self._on_unknown(str(error))
            return as_it_is(batch)

    def _cut(self, batch: Any) -> Loaded:
        total = length_of(batch)
        if total is None:
            if self._agree is None:
                return as_it_is(batch)
            raise UnknownBatch(type(batch).__name__)
        share = self._share(total)
        return cut(batch, share.loaded), share, None


@dataclass(frozen=True)
class _Iteration:
    """One iteration over a loader whose batches are divided.

    Attributes
    ----------
    make : callable
        Makes the iterator of the loader, or of a copy of it.
    loader : DataLoader
        With the run's batches.
    plan : LoaderPlan
    cursor : IteratorState
    """

    make: Make
    loader: DataLoader[Any]
    plan: LoaderPlan
    cursor: IteratorState

    def full(self) -> Source:
        """Return a source of batches that are not cut."""
        return Source(self.make, self.loader, as_it_is)

    def note_draws(self) -> None:
        """Note whether what workers draw, or what their copies remember, is of this iteration: batches are then loaded to be left out."""
        self.cursor.draws_in_workers |= self.loader.num_workers > 0 and (self.plan.draws or self.plan.leaves_effects)


def _probing(iteration: _Iteration, collation: Collation) -> tuple[Make, DataLoader[Any]]:
    """Return what makes the iterator of a loader that learns how its batches can be cut, until that is known, and the loader.

    Workers that live on are those of one copy, and a loader that iterates by itself is no copy.
    """
    make, loader, plan = iteration.make, iteration.loader, iteration.plan
    if loader.persistent_workers and plan.loading is not None:
        return make, plan.loading
    if (probe := collation.probe()) is None:
        return make, loader
    if iterates_itself(loader):
        return partial(with_attributes, make, collate_fn=probe), loader
    plan.loading = copy_of(loader, collate_fn=probe)
    return make, plan.loading


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # iterable data without a length
        return None
