"""Data loaders that give a rank its share of every global batch.

The user's loader is unchanged: same object, same length, same batches in the same order. Only the batches of an iteration are cut. For
map-style data the batch of *indices* is cut, so a rank loads only its own samples, with the user's sampler, workers and pinning; the
sampler draws the same numbers as in a single process. Batches without indices (iterable data) and batches whose loading draws random
numbers are cut after loading: the loader's plan (:mod:`.loader_plan`) decides. The layout of a batch is known for PyTorch's own collate
function, and learned by :mod:`.collate` for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from ..rng.streams import LoadingStream
from ..tensor.batch_shard import BatchShard
from .collate import Agree
from .divided_sources import DividedSources, Iteration
from .fetch import Make, taking_rows
from .fetch_effects import has_effects
from .followed_stream import FollowedStream, check_replayed, is_followed
from .iterable import Streams
from .iteration_places import IteratorState
from .iterator_state import Begin, IteratorLog, LoaderIterator
from .joined_batches import JoinedBatches
from .loader_plan import Checks, LoaderPlans
from .sharded_iterator import OnBatch, Place, SplitBatches, WatchedBatches
from .source_state import SourceState
from .worker_rng import iterate, with_noted_seed
from .worker_states import can_live, living, set_living

_ANEW = (
    "Persistent workers of a DataLoader have drawn random numbers in an ordinary cell. Those of this cell started anew, so they draw "
    "other numbers than on one process"
)


class ShardedLoaders:
    """Splits the batches of loaders between the ranks.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of a given size.
    training : callable
        Returns whether an iteration that starts now is for training.
    split_evaluation : callable
        Returns whether an iteration that starts now and is not for training is split too.
    together : int
        Number of the loader's batches that form one batch of the run.
    place : callable
        Returns the rank's part of a batch as the cell sees it; raises `UnknownBatch` for one that cannot be split.
    agree : callable, optional
        Returns all ranks' values of its argument, a collective; ``None`` if there is one rank.
    on_batch : callable
        Called before the cell gets a training batch, with its share (``None``: not split), its number from 1, and the number of
        batches (``None``: unknown).
    on_other : callable
        Called with the share of every other batch, in evaluation.
    on_unknown : callable
        Called with the type or structure in a batch that keeps a loader from being split.
    say : callable
        Shows a message to the user.
    on_order : callable
        Called on all ranks before the sample order of a split loader is drawn.
    streams : Streams, optional
        Assigns the workers of iterable data to ranks; ``None`` if there is one rank.
    stream : LoadingStream, optional
        Random stream for loading the rank's own samples; ``None``: the cell's.
    whole_draws : bool
        Whether random numbers drawn while loading must equal those of a single process, for which every rank loads full batches.
    on_training : callable, optional
        Called with every loader that the cell trains on, and `together`.
    on_drawn : callable, optional
        Called with the loader of every other batch, and `together`.
    cursors : IteratorLog, optional
        Records every iteration that begins, so that a run can resume within it.
    checks : Checks, optional
        Compares what ranks load alone with full batches.
    sees_whole : bool
        Whether the cell sees full batches, and not the rank's part of each.
    full_batch : iterable of str
        Classes of data sets that draw, though not for the first batch.
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
        say: Callable[[str], None],
        on_order: Callable[[], None],
        streams: Streams | None,
        stream: LoadingStream | None,
        whole_draws: bool,
        on_training: Callable[[DataLoader[Any], int], None] = lambda _loader, _together: None,
        on_drawn: Callable[[DataLoader[Any], int], None] = lambda _loader, _together: None,
        cursors: IteratorLog | None = None,
        checks: Checks | None = None,
        sees_whole: bool = True,
        full_batch: Iterable[str] = (),
    ) -> None:
        self._cursors = cursors
        self._training = training
        self._split_evaluation = split_evaluation
        self.together = together
        self._place, self._on_training, self._on_drawn = place, on_training, on_drawn
        self._on_batch = on_batch
        self._on_other = on_other
        self._on_order = on_order
        self._say = say
        self._plans = LoaderPlans(
            together=together,
            share=share,
            agree=agree,
            whole_draws=whole_draws,
            checks=checks,
            on_unknown=on_unknown,
            sees_whole=sees_whole,
            full_batch=full_batch,
        )
        self._sources = DividedSources(self._plans, streams=streams, stream=stream)

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
        cursor = IteratorState(loader, training, split, SourceState(loader, deep=True), living=living(loader))
        if self._cursors is not None:
            self._cursors.note(cursor)
        return LoaderIterator(cursor, self._batches(original, loader, cursor))

    def draws_late(self, loader: DataLoader[Any]) -> bool:
        """Return whether an earlier try of the cell has shown that loading draws random numbers, though not for the first batch."""
        return self._plans.draws_late(loader)

    def go_on(self, original: Make, cursor: IteratorState, loader: DataLoader[Any], begin: Begin) -> SplitBatches | WatchedBatches:
        """Return the remaining batches of an iteration; `loader` omits the earlier ones if its sampler can skip them."""
        set_living(cursor.loader, cursor.living)
        if cursor.draws_in_workers:
            self._plans.of(loader).draws = True
        batches: SplitBatches | WatchedBatches = begin(lambda: self._batches(original, loader, cursor))
        to_load, last = cursor.num_to_load, cursor.last

        def begin_again(start: Callable[[], None], asked: SourceState | None = None) -> None:
            present = SourceState(cursor.loader)
            begin(start)  # draws the order as well
            batches.skip(to_load)
            cursor.start.keep_changes(to_load)
            present.set()
            if asked is not None:
                asked.set_collate()

        if isinstance(batches, SplitBatches):
            batches.count = cursor.taken
            batches.begin_again = begin_again
        batches.skip(to_load)
        cursor.start.keep_changes(to_load)
        if to_load:
            check_replayed(cursor, last, self._say)
        return batches

    def _batches(self, its_own: Make, loader: DataLoader[Any], cursor: IteratorState) -> SplitBatches | WatchedBatches:
        plan = self._plans.of(loader)
        make, loader = taking_rows(its_own), self._plans.with_joined_batches(plan, loader)

        def note_draws() -> None:
            if not cursor.draws_in_workers and cursor.living is not None and cursor.living.begun_anew:
                self._say(_ANEW)
            cursor.draws_in_workers = True

        def original(used: DataLoader[Any]) -> Any:
            if cursor.split and not can_live(cursor.loader):
                return self._followed(with_noted_seed(make, used, cursor.loader), cursor)  # draws of split loaders are found elsewhere
            return self._followed(iterate(make, used, cursor.loader, before=cursor.living, on_draw=note_draws), cursor)

        def on_other(share: BatchShard | None) -> None:
            self._on_other(share)
            self._on_drawn(cursor.loader, self.together)

        if not cursor.split:
            cursor.draws_in_workers |= loader.num_workers > 0 and has_effects(loader)
            return WatchedBatches(original(loader), partial(on_other, None))
        iteration = Iteration(original, loader, plan, cursor)
        on_batch: OnBatch = self._on_batch if cursor.training else lambda share, *_: on_other(share)
        return SplitBatches(self._sources.source(iteration), _length(loader), self._place, on_batch, self._sources.first(iteration))

    def _followed(self, batches: Any, cursor: IteratorState) -> Any:
        if not is_followed(cursor.loader):
            return batches
        return FollowedStream(batches, cursor, self._plans.agree if cursor.split else None)

    def length(self, original: Callable[[DataLoader[Any]], int], loader: DataLoader[Any]) -> int:
        """Return the number of the run's batches in `loader`; `original` is the loader's own ``__len__``."""
        number = original(loader)
        return number if loader.batch_sampler is None or isinstance(loader.batch_sampler, JoinedBatches) else -(-number // self.together)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # iterable data without a length
        return None
