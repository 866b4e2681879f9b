"""Replacement of engines between two generations of ranks."""

from __future__ import annotations

import threading
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from ..checkpoint.snapshot_index import CompleteSnapshot
from ..cluster.base import Cluster
from ..errors import ClusterError, UsageError
from ..protocol.bus import Bus
from .run_events import RanksChanged
from .worker_group import WorkerGroup, WorkerResult, reasons_of


class Restarts:
    """Ranks whose engines the user wants restarted, until the run does it or leaves it to its caller.

    Any thread may call any method.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks: set[int] = set()
        self._is_open = True

    def order(self, rank: int) -> None:
        """Order a restart of the engine of `rank`; raise a `UsageError` if the run is over."""
        with self._lock:
            if not self._is_open:
                raise UsageError("The run has just ended: try again.")
            self._ranks.add(rank)

    @property
    def ranks(self) -> list[int]:
        """Ranks whose engines are still to be restarted."""
        with self._lock:
            return sorted(self._ranks)

    def replace(self, lost: Iterable[int]) -> bool:
        """Note that the ranks `lost` get new engines; return whether the user had ordered all of these."""
        with self._lock:
            wanted = self._ranks.issuperset(lost)
            self._ranks.difference_update(lost)
            return wanted

    def drop(self, missing: Iterable[int]) -> None:
        """Note that the run continues without the ranks `missing`; higher ranks move up."""
        with self._lock:
            gone = sorted(missing)
            self._ranks = {rank - bisect(gone, rank) for rank in self._ranks.difference(gone)}

    def close(self) -> list[int]:
        """Refuse further orders; return the ranks that the run has not restarted."""
        with self._lock:
            self._is_open = False
            return sorted(self._ranks)


MAX_ATTEMPTS = 3
"""Generations that may be lost at the same snapshot."""
REPLACE_LIMIT = timedelta(seconds=60)


class EngineReplacement:
    """Replace lost engines, and change the number of ranks of an elastic run.

    Parameters
    ----------
    group : WorkerGroup
        Of the first generation.
    restarts : Restarts
        Engines that the user wants restarted; these do not count as lost.
    renew : callable
        Takes a group whose controller is gone, and returns a group of equal size on a cluster that has the old cluster's files.
    events : Bus
        The run's; gets `RanksChanged`.
    tell : callable
        Shows a line to the user.
    on_progress : callable
        Shows the progress of an engine's start.

    Attributes
    ----------
    group : WorkerGroup
        Of the current or next generation.
    elastic : tuple of int, optional
        Smallest and largest number of ranks of the run.
    has_new_hosts : bool
        The last replacements are on hosts that have none of the run's files.
    """

    def __init__(
        self,
        group: WorkerGroup,
        *,
        restarts: Restarts,
        renew: Callable[[WorkerGroup], WorkerGroup],
        events: Bus,
        tell: Callable[[str], None],
        on_progress: Callable[[str], None],
    ) -> None:
        self.group = group
        self.elastic: tuple[int, int] | None = None
        self.has_new_hosts = False
        self._restarts = restarts
        self._renew = renew
        self._events = events
        self._tell = tell
        self._on_progress = on_progress
        self._attempts: Counter[int | None] = Counter()

    @property
    def cluster(self) -> Cluster:
        """The cluster that the engines belong to."""
        return self.group.cluster

    @property
    def may_grow(self) -> bool:
        """Whether the run has fewer ranks than it may have."""
        return self.elastic is not None and self.group.num_ranks < self.elastic[1]

    def replace(self, lost: Sequence[WorkerResult], snapshot: CompleteSnapshot | None) -> bool:
        """Replace the engines of the ranks `lost`, to resume from `snapshot`; return whether the run can continue."""
        cluster, self.has_new_hosts = self.cluster, False
        place = snapshot.number if snapshot is not None else None
        ranks = ("rank " if len(lost) == 1 else "ranks ") + ", ".join(str(end.rank) for end in lost)
        if self._restarts.replace([end.rank for end in lost]):
            what = f"Restarting {ranks}"
        else:
            self._attempts[place] += 1
            what = f"Lost {ranks} ({reasons_of(lost)})"
        if self._attempts[place] >= MAX_ATTEMPTS:
            self._tell(f"{what}, for the third time at the same point: giving up.")
            return False
        gone, without = [end.rank for end in lost], self._to_do_without(cluster)
        if without:
            num_left = min(len(cluster.engine_ids) - len(without), self.group.num_ranks)
            self._tell(f"{what}: resuming from {place_of(snapshot)} on the {_engines(num_left)} of the other hosts.")
            self._drop(cluster, without)
            gone = [rank - bisect(without, rank) for rank in gone if rank not in without]
        else:
            self._tell(f"{what}: resuming from {place_of(snapshot)} with {'a new engine' if len(lost) == 1 else 'new engines'}.")
        for attempt in range(MAX_ATTEMPTS):
            try:
                if cluster.controller_alive:
                    self.has_new_hosts |= cluster.wait_for_hosts(self._on_progress)
                    unreachable, gone = gone, []  # a second attempt covers those that have died meanwhile
                    self._replace(cluster, unreachable)
                else:
                    self.group = self._renew(self.group)
            except ClusterError as error:
                cluster = self.cluster
                if cluster.alive or attempt == MAX_ATTEMPTS - 1:  # unless the cause is that another process has died meanwhile
                    self._tell(str(error))
                    return False
            else:
                break
        self._events.publish(RanksChanged(world_size=self.group.num_ranks))
        return True

    def _replace(self, cluster: Cluster, gone: Sequence[int]) -> None:
        """Restart the dead engines, and those of `gone`, which may be alive but not answer.

        An elastic run continues without engines that do not come up.
        """
        try:
            if ranks := sorted({*cluster.dead_ranks(), *gone}):
                cluster.restart(ranks, limit=REPLACE_LIMIT, on_progress=self._on_progress)
        except ClusterError:
            missing = cluster.missing_ranks()
            left = len(cluster.engine_ids) - len(missing)
            if self.elastic is None or not cluster.controller_alive or not missing or left < self.elastic[0]:
                raise
            self._drop(cluster, missing)
            self._tell(f"No replacement engine could be started: continuing on {_engines(left)}, and on more as soon as one is available.")

    def _to_do_without(self, cluster: Cluster) -> list[int]:
        """Return the ranks of lost hosts if an elastic run can continue without them: the other hosts get no more engines."""
        lost = cluster.ranks_of_lost_hosts() if self.elastic is not None and cluster.controller_alive else []
        return lost if lost and self.elastic is not None and len(cluster.engine_ids) - len(lost) >= self.elastic[0] else []

    def _drop(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        cluster.drop(ranks)
        self._restarts.drop(ranks)
        self.group = WorkerGroup(cluster, min(len(cluster.engine_ids), self.group.num_ranks))

    def take_back(self, snapshot: CompleteSnapshot | None, *, send: Callable[[], object]) -> None:
        """Add the engines that have come up, to resume from `snapshot` with more ranks; `send` sends their hosts what they need."""
        self.group.leave()  # the group's store still holds the order to stop
        before = len(self.cluster.engine_ids)
        if not (number := self.cluster.take_back()):
            return
        try:
            send()
        except ClusterError as error:
            self._tell(f"{error} The run continues with {_engines(self.group.num_ranks)}.")
            self._drop(self.cluster, range(before, before + number))
            return
        self.group = WorkerGroup(self.cluster, min(self.group.num_ranks + number, self.elastic[1] if self.elastic else number))
        self._events.publish(RanksChanged(world_size=self.group.num_ranks))
        up = "A new engine is up" if number == 1 else f"{number} new engines are up"
        self._tell(f"{up}: resuming from {place_of(snapshot)} with {_engines(self.group.num_ranks)}.")


def place_of(snapshot: CompleteSnapshot | None) -> str:
    """Return in words where a run resumes."""
    return "the cell's beginning" if snapshot is None else f"step {snapshot.step}"


def _engines(number: int) -> str:
    return "1 engine" if number == 1 else f"{number} engines"
