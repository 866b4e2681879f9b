"""Track which snapshots are complete, and schedule the next one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ..engine.snapshot.memory_ahead import SHARE
from ..engine.snapshot.snapshot_files import UNASKED
from ..errors import ClusterError
from ..protocol import Message, ShardLeft, SnapshotTaken, StateSize, Steps
from ..transport.base import BlobStore, SnapshotStore

SHORTEST = timedelta(seconds=1)
"""Shortest time between two snapshots."""
ON_ITS_WAY = timedelta(seconds=10)
"""Time to wait for parts in flight from other hosts after a generation has ended."""
NOT_SAFE = (
    "No snapshot counts: the notebook's host cannot keep what engines of other hosts alone have ({error}). "
    "If a host is lost, more steps are lost with it."
)


@dataclass(frozen=True)
class CompleteSnapshot:
    """A snapshot that every rank has written. `keys`: its buffers; `metric`: the value of the metric if it is the best so far."""

    number: int
    world_size: int
    step: int
    place: str
    keys: frozenset[str]
    metric: float | None = None


class SnapshotKeeper:
    """Schedule snapshots, and keep the newest complete one.

    Any thread may call :meth:`note`, :meth:`hasten` and :meth:`new_number`; one thread calls the rest.

    Parameters
    ----------
    store : SnapshotStore
        Where the ranks write them; replaced when the ranks move.
    world_size : int
    keep : int
        Most snapshots that wait to be written to disk: as many as are kept there.
    newest : CompleteSnapshot, optional
        An existing snapshot.
    clock : callable
        Returns seconds; replaced in tests.

    Attributes
    ----------
    newest : CompleteSnapshot, optional
        The last complete snapshot.
    held, best : CompleteSnapshot, optional
        Kept as well: one that is being written to disk, and the best by a metric, which is to be written.
    waiting : list of CompleteSnapshot
        Snapshots at multiples of steps that are to be written as well, the oldest first.
    training_since : float, optional
        When the first step was reported.
    """

    def __init__(
        self,
        store: SnapshotStore,
        world_size: int,
        *,
        keep: int,
        newest: CompleteSnapshot | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self._world_size, self._clock = store, world_size, clock
        self.newest = newest
        self.held: CompleteSnapshot | None = None
        self.best: CompleteSnapshot | None = None
        self.waiting: list[CompleteSnapshot] = []
        self.training_since: float | None = None
        self._numbers = itertools.count(newest.number + 1 if newest is not None else 1)
        self._keep = keep
        self._hastened = False
        self._asked: int | None = None
        self._next: float | None = None
        self._seconds = 0.0  # expected duration of the first one
        self._parts: dict[int, dict[int, SnapshotTaken]] = {}
        self._news: list[str] = []
        self._has_told = False

    def start(self, world_size: int) -> None:
        """Begin a generation of ranks: incomplete snapshots of the last one are removed."""
        self._world_size = world_size
        for number in list(self._parts):  # incomplete ones
            self.store.remove(number)
        if self._asked is not None:
            self.store.remove(self._asked)
        self._parts = {}
        self._asked, self._next = None, self._clock() if self._hastened else None

    def note(self, event: Message) -> None:
        """Take an event of a rank."""
        if isinstance(event, SnapshotTaken):
            self._parts.setdefault(event.number, {})[event.rank] = event
            if event.place:
                self.store.note_part(event.number, event.rank)
        elif isinstance(event, ShardLeft):
            self.store.pass_on(event.name, event.rank)
        elif isinstance(event, Steps) and event.step:
            now = self._clock()
            if self._next is None:
                self._next = now + self._pause(self._seconds)
            self.training_since = self.training_since or now
        elif isinstance(event, StateSize):
            longer = self._pause(event.seconds) - self._pause(self._seconds)
            self._seconds = max(self._seconds, event.seconds)
            if longer > 0 and self._next is not None and self._asked is None and not self._hastened:
                self._next += longer

    def hasten(self) -> None:
        """Make a snapshot due at once, even if the ranks are paused. Any thread may call this."""
        self._hastened = True
        self._next = self._clock()

    def due(self, *, idle: bool = False) -> int | None:
        """Return the number of a snapshot to ask the ranks for now, if one is due. `idle`: the ranks are paused and make no steps."""
        self.commit()
        if self._next is None or self._asked is not None or self._clock() < self._next or (idle and not self._hastened):
            return None
        self._asked = self.new_number()
        return self._asked

    def new_number(self) -> int:
        """Return an unused snapshot number. Any thread may call this."""
        return next(self._numbers)

    def commit(self, limit: timedelta = timedelta(0)) -> None:
        """Adopt snapshots that are complete and safe, and remove superseded ones. Waits for parts in flight at most `limit`."""
        for number in sorted(number for number, parts in list(self._parts.items()) if len(parts) >= self._world_size):
            if number != self._asked and number < UNASKED:
                continue
            try:
                if not self.store.is_safe(number, limit):
                    continue
                is_safe = True
            except (ClusterError, OSError) as error:
                is_safe = False
                if isinstance(error, OSError) and not self._has_told:  # the loss of a host is reported elsewhere
                    self._has_told, self._news = True, [NOT_SAFE.format(error=error)]
            if number == self._asked:
                self._asked = None
            self._take(number, self._parts.pop(number), is_safe=is_safe)

    def news(self) -> list[str]:
        """Return new messages for the user since the last call."""
        news, self._news = self._news, []
        return news

    def _take(self, number: int, parts: dict[int, SnapshotTaken], *, is_safe: bool) -> None:
        cost = max(part.seconds for part in parts.values()) + self.store.seconds(number)
        self._next = self._clock() + self._pause(cost)
        first = parts[0]
        is_one = all((part.step, part.place) == (first.step, first.place) for part in parts.values())
        if not (first.place and is_one and is_safe):
            self.store.remove(number)  # writing failed, or the ranks were at different places, in code that only some of them run
            return
        self._hastened = False
        keys = frozenset(key for part in parts.values() for key in part.keys)
        whole = CompleteSnapshot(number, self._world_size, first.step, first.place, keys, first.best)
        before = [self.newest, whole]
        if self.newest is None or whole.step >= self.newest.step:
            self.newest = whole
        if whole.metric is not None:
            before.append(self.best)
            self.best = whole
        if first.at_multiple:
            self.waiting.append(whole)
            before += self.waiting[: -self._keep]
            self.waiting = self.waiting[-self._keep :]
        self._drop(*before)

    @staticmethod
    def _pause(cost: float) -> float:
        return max(SHORTEST.total_seconds(), cost / SHARE)

    def go_back(self, snapshot: CompleteSnapshot) -> None:
        """Make `snapshot`, whose files exist, the newest."""
        before, self.newest, self.waiting = [self.newest, *self.waiting], snapshot, []
        self._drop(*before)

    def publish(self) -> bool:
        """Make the newest snapshot available to the next generation; return false if it is lost, and then forget all snapshots."""
        newest = self.newest
        if newest is None or self.store.publish(newest.number, world_size=newest.world_size, keys=newest.keys):
            return True
        self.begin_anew()
        return False

    def begin_anew(self) -> None:
        """Forget all snapshots: the run restarts from its beginning."""
        before, self.newest, self.waiting, self.best = [self.newest, self.best, *self.waiting], None, [], None
        self._drop(*before)

    def retain(self, snapshot: CompleteSnapshot) -> None:
        """Keep a snapshot until :meth:`release`."""
        self.held = snapshot
        self.waiting = [waiting for waiting in self.waiting if waiting is not snapshot]
        if snapshot is self.best:
            self.best = None

    def release(self) -> None:
        """Stop keeping the held snapshot, and remove it unless it is still needed."""
        held, self.held = self.held, None
        self._drop(held)

    def _drop(self, *snapshots: CompleteSnapshot | None) -> None:
        """Remove snapshots that nothing needs any more."""
        for snapshot in snapshots:
            if snapshot is not None and snapshot not in (self.newest, self.held, self.best, *self.waiting):
                self.store.remove(snapshot.number)

    def parts(self, snapshot: CompleteSnapshot) -> list[bytes]:
        """Return each rank's part of a snapshot."""
        return [self.store.part(snapshot.number, rank) for rank in range(snapshot.world_size)]

    def blobs(self, snapshot: CompleteSnapshot) -> BlobStore:
        """Return the store of a snapshot's buffers."""
        return self.store.blobs(snapshot.number)
