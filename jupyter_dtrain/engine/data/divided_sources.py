"""Sources of the rank's parts of a loader's batches, for each way in which a plan divides them.

A loader's behavior is learned at its first batch, before the cell gets it. If that shows that all ranks must load full batches, the
iteration starts over from saved states.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from ..found_late import DrawsLate
from ..rng.streams import LoadingStream
from ..tensor.batch_shard import BatchShard
from .batch_layout import UnknownBatch, cut, length_of
from .collate import Collation, CutAfterLoading
from .collate_words import fetching_may_draw
from .fetch import Make, copy_of
from .fetch_effects import has_effects
from .iterable import Stream, Streams
from .iteration_places import IteratorState
from .loader_plan import Division, LoaderPlan, LoaderPlans
from .own_iterators import iterates_itself
from .sharded_iterator import FirstBatch
from .source_state import SourceState
from .sources import Check, Loaded, LoaderShard, Source, as_it_is, forget_pending, may_draw, of_own_samples
from .worker_states import with_attributes

_DRAWING = "distributed"
"""A library whose threads draw from Python's `random` while a batch is loaded: Dask's, for the next try to connect."""


@dataclass(frozen=True)
class Iteration:
    """One iteration over a loader whose batches are divided.

    Attributes
    ----------
    make : callable
        Makes the iterator of the loader, or of a copy of it.
    loader : DataLoader
        The loader with the run's batches.
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
        """Record in the cursor whether workers draw numbers or keep state, so that a resumed run must load skipped batches again."""
        if self.loader.num_workers:
            self.cursor.draws_in_workers |= self.plan.draws or self.plan.leaves_effects or has_effects(self.loader)


class DividedSources:
    """Makes the sources of iterations.

    Parameters
    ----------
    plans : LoaderPlans
    streams : Streams, optional
        Assigns the workers of iterable data to ranks; ``None`` if there is one rank.
    stream : LoadingStream, optional
        Random stream for loading the rank's own samples; ``None``: the cell's.
    """

    def __init__(self, plans: LoaderPlans, *, streams: Streams | None, stream: LoadingStream | None) -> None:
        self._plans, self._streams, self._stream = plans, streams, stream

    def source(self, iteration: Iteration) -> Source | Stream:
        """Return the source of the rank's parts of batches."""
        match self._plans.divide(iteration.plan, iteration.loader):
            case Division.OWN_SAMPLES:
                return self._own_samples(iteration)
            case Division.OWN_WORKERS:
                return self._own_workers(iteration)
            case Division.CUT:
                return self._cut_after_loading(iteration)
            case Division.FULL:
                return iteration.full()

    def _own_samples(self, iteration: Iteration) -> LoaderShard:
        loader, plan = iteration.loader, iteration.plan
        iteration.note_draws()
        new = may_draw(loader) and not plan.is_known and (self._plans.agree is not None or self._plans.whole_draws)
        watch = may_draw(loader) and self._plans.whole_draws
        if plan.loading is None or not loader.persistent_workers:
            check = self._check(loader, plan)
            plan.loading = of_own_samples(
                loader, share=self._plans.share, stream=self._stream, collation=plan.collation, watch=watch, check=check
            )
        forget_pending(plan.loading)
        return LoaderShard(
            iteration.make,
            plan.loading,
            self._stream if loader.num_workers == 0 and may_draw(loader) else None,
            on_first=self._ask_all(iteration, watch=watch and plan.collation is None) if new else None,
            on_draw=self._on_later_draw(iteration) if watch else None,
            shared=self._plans.agree is not None,
        )

    def _own_workers(self, iteration: Iteration) -> Stream:
        loader, plan, streams = iteration.loader, iteration.plan, self._streams
        assert streams is not None

        def workers() -> dict[int, DataLoader[Any]]:
            made = streams.own_workers(loader) if plan.own_workers is None else plan.own_workers
            if loader.persistent_workers:
                plan.own_workers = made
            return made

        return Stream(streams, iteration.make, loader, workers)

    def _cut_after_loading(self, iteration: Iteration) -> Source:
        loader, plan = iteration.loader, iteration.plan
        iteration.note_draws()
        if plan.collation is None:
            return Source(iteration.make, loader, self._cut_if_possible if plan.leaves_effects else self._cut)
        if not plan.leaves_effects:
            return Source(iteration.make, loader, plan.collation.of_whole)
        return Source(*_probing(iteration, plan.collation), plan.collation.of_probed)

    def _ask_all(self, iteration: Iteration, *, watch: bool) -> Callable[[bool, bool], None]:
        """Return a function that asks all ranks, at the first batch, whether loading it drew random numbers or left side effects."""
        plan = iteration.plan

        def ask(drew: bool, changed: bool) -> None:
            told = (drew and watch, changed)
            drawn, changes = zip(*(self._plans.agree(told) if self._plans.agree is not None else [told]), strict=True)
            if any(changes) and self._plans.agree is not None:
                plan.leaves_effects = True
            elif not any(drawn):
                return
            plan.draws |= any(drawn)
            iteration.note_draws()
            if self._plans.agree is not None:
                raise CutAfterLoading

        return ask

    def _on_later_draw(self, iteration: Iteration) -> Callable[[bool], None]:
        """Return a function to be called when loading a batch after the first has drawn random numbers, with whether Python's alone.

        It does not ask the other ranks, whose samples may draw none: that would cost a collective in each batch.
        """
        loader, plan = iteration.loader, iteration.plan

        def drawn(pythons_alone: bool) -> None:
            if pythons_alone and _DRAWING in sys.modules and not fetching_may_draw(loader):
                return
            if self._plans.agree is None or (plan.collation is not None and plan.collation.is_whole and not loader.num_workers):
                plan.draws = True  # a single process, or one that loads the full batch too
                iteration.note_draws()
            else:
                raise DrawsLate(loader.dataset)

        return drawn

    def first(self, iteration: Iteration) -> FirstBatch | None:
        """Return the handler of a loader's first batch, which records that it can be split or starts over; ``None`` if that is known."""
        loader, plan = iteration.loader, iteration.plan
        if plan.is_known:
            return None
        start = SourceState(loader, deep=True)

        def decide(error: UnknownBatch | CutAfterLoading | None) -> Source:
            if error is None:
                plan.is_known = True
                return iteration.full()
            if self._plans.checks is not None:
                self._plans.checks.undo(loader)
            start.set()
            if isinstance(error, CutAfterLoading):
                plan.is_known = True
                plan.draws |= plan.collation is not None and plan.collation.draws
                return self._cut_after_loading(iteration)
            plan.is_full = True
            self._plans.on_unknown(str(error))
            return iteration.full()

        return FirstBatch(partial(SourceState, loader), decide)

    def _check(self, loader: DataLoader[Any], plan: LoaderPlan) -> Check | None:
        """Return a check of batches before loading, which may require that every rank loads full batches; ``None`` if not needed."""
        checks, collation = self._plans.checks, plan.collation
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
        """Return the rank's part of a batch that cannot be loaded twice, or the full batch if it cannot be cut."""
        try:
            return self._cut(batch)
        except UnknownBatch as error:
            self._plans.on_unknown(str(error))
            return as_it_is(batch)

    def _cut(self, batch: Any) -> Loaded:
        total = length_of(batch)
        if total is None:
            if self._plans.agree is None:
                return as_it_is(batch)
            raise UnknownBatch(type(batch).__name__)
        share = self._plans.share(total)
        return cut(batch, share.loaded), share, None


def _probing(iteration: Iteration, collation: Collation) -> tuple[Make, DataLoader[Any]]:
    """Return an iterator factory and a loader that probe how batches can be cut, until that is known.

    Persistent workers belong to one copy of the loader. A loader that iterates by itself is not copied.
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
