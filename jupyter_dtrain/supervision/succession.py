"""Who carries on: the engines of a run from one generation of ranks to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..cluster.cluster import EngineCluster
from ..engine.task import Task
from ..errors import ClusterError
from ..group import Group
from ..rank_end import RankEnd, reasons_of
from .keeper import Whole
from .restarts import Restarts

MAX_ATTEMPTS = 3
"""Generations that may be lost at the same place."""
REPLACE_LIMIT = timedelta(seconds=60)


@dataclass(frozen=True)
class Cause:
    """Why a run goes on after all of its ranks have left; false where it does not.

    Attributes
    ----------
    lost : list of RankEnd
    back : Whole, optional
        Where it is to go on, by somebody's order.
    more : bool
        There is an engine for one more rank.
    count_targets : bool
        Targets have to be counted from here on.
    """

    lost: list[RankEnd]
    back: Whole | None
    more: bool
    count_targets: bool

    def __bool__(self) -> bool:
        return bool(self.lost or self.back is not None or self.more or self.count_targets)


class Succession:
    """Puts engines in the place of others.

    Parameters
    ----------
    group : Group
        Of the first generation.
    restarts : Restarts
        Engines that somebody wants restarted: these are not lost.
    renew : callable
        Returns as many ranks on a new cluster, which has the files of the one of the group that is given.
    on_replaced : callable
        Told of the number of ranks when engines have been replaced, or are fewer or more.
    tell : callable
        Shows a line.
    on_progress : callable
        Shows how far the start of an engine is.

    Attributes
    ----------
    group : Group
        Of the generation that is at work, or is to come.
    elastic : tuple of int, optional
        With how few ranks the run may go on, and with how many again.
    """

    def __init__(
        self,
        group: Group,
        *,
        restarts: Restarts,
        renew: Callable[[Group], Group],
        on_replaced: Callable[[int], None],
        tell: Callable[[str], None],
        on_progress: Callable[[str], None],
    ) -> None:
        self.group = group
        self.elastic: tuple[int, int] | None = None
        self._restarts = restarts
        self._renew = renew
        self._on_replaced = on_replaced
        self._tell = tell
        self._on_progress = on_progress
        self._attempts: Counter[int | None] = Counter()

    @property
    def cluster(self) -> EngineCluster:
        """The cluster that the engines belong to."""
        return self.group.cluster

    @property
    def may_grow(self) -> bool:
        """Whether there are fewer engines than there may be."""
        return self.elastic is not None and self.group.num_ranks < self.elastic[1]

    def meet(self, task: Task, snapshot: Whole | None) -> Task | None:
        """Return `task` with the place where its ranks meet; ``None`` where an engine is in the way that cannot be replaced."""
        while True:
            try:
                return self.group.meet(task)
            except ClusterError as error:
                if not self.mend([RankEnd(0, None, str(error))], snapshot):
                    return None

    def mend(self, lost: Sequence[RankEnd], snapshot: Whole | None) -> bool:
        """Put other engines in the place of those of the ranks `lost`, to go on from `snapshot`; return whether that can be."""
        cluster = self.cluster
        place = snapshot.number if snapshot is not None else None
        ranks = ("rank " if len(lost) == 1 else "ranks ") + ", ".join(str(end.rank) for end in lost)
        if self._restarts.take([end.rank for end in lost]):
            what = f"Restarting {ranks}"
        else:
            self._attempts[place] += 1
            what = f"Lost {ranks} ({reasons_of(lost)})"
        if self._attempts[place] >= MAX_ATTEMPTS:
            self._tell(f"{what}, for the third time at the same place: giving up.")
            return False
        self._tell(f"{what}: going on from {place_of(snapshot)} with {'a new engine' if len(lost) == 1 else 'new engines'}.")
        gone = [end.rank for end in lost]
        for attempt in range(MAX_ATTEMPTS):
            try:
                if cluster.controller_alive:
                    unreachable, gone = gone, []  # a second attempt is for those that have died meanwhile
                    self._replace(cluster, unreachable)
                else:
                    self.group = self._renew(self.group)
            except ClusterError as error:
                cluster = self.cluster
                if cluster.alive or attempt == MAX_ATTEMPTS - 1:  # not because one more has died meanwhile
                    self._tell(str(error))
                    return False
            else:
                break
        self._on_replaced(self.group.num_ranks)
        return True

    def _replace(self, cluster: EngineCluster, gone: Sequence[int]) -> None:
        """Start other engines in the place of the dead ones, and of those of `gone`, which may only not answer any more.

        A run that may goes on without those that do not come up.
        """
        try:
            cluster.restart(sorted({*cluster.dead_ranks(), *gone}), limit=REPLACE_LIMIT, on_progress=self._on_progress)
        except ClusterError:
            missing = cluster.missing_ranks()
            left = len(cluster.engine_ids) - len(missing)
            if self.elastic is None or not cluster.controller_alive or not missing or left < self.elastic[0]:
                raise
            cluster.let_go(missing)
            self._restarts.let_go(missing)
            self.group = Group(cluster, min(left, self.group.num_ranks))
            self._tell(f"No new engine has come up: going on with {_engines(left)}, and with more as soon as one does.")

    def take_back(self, snapshot: Whole | None) -> None:
        """Take in the engine that has come up, to go on from `snapshot` with one rank more."""
        self.group.disband()  # its store knows of the stop
        if self.cluster.take_back():
            self.group = Group(self.cluster, self.group.num_ranks + 1)
            self._on_replaced(self.group.num_ranks)
            self._tell(f"An engine has come up: going on from {place_of(snapshot)} with {_engines(self.group.num_ranks)}.")


def place_of(snapshot: Whole | None) -> str:
    """Return from where a run goes on, in words."""
    return "the cell's beginning" if snapshot is None else f"step {snapshot.step}"


def _engines(number: int) -> str:
    return "1 engine" if number == 1 else f"{number} engines"
