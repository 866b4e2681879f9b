"""Save a last snapshot when a scheduler ends the engines' job, before the hosts are gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from ..checkpoint.snapshot_index import CompleteSnapshot, SnapshotKeeper
from ..cluster.base import Cluster

LIMIT = timedelta(seconds=20)
"""Time for the snapshot. Schedulers usually wait half a minute between their signal and the end."""
LEAVING = "The scheduler ends the engines' job: a last snapshot is taken, and the run resumes from it if the job gets hosts again."


class Departure:
    """Take a last snapshot when the cluster is leaving, then let the engines go.

    Parameters
    ----------
    keeper : SnapshotKeeper
    tell : callable
        Shows a line to the user.
    """

    def __init__(self, keeper: SnapshotKeeper, tell: Callable[[str], None]) -> None:
        self._keeper, self._tell = keeper, tell
        self._since: float | None = None
        self._before: CompleteSnapshot | None = None

    def look(self, cluster: Cluster) -> None:
        """Do what is due; called a few times a second."""
        if not cluster.is_leaving:
            self._since = None
            return
        if self._since is None:
            self._since, self._before = time.monotonic(), self._keeper.newest
            self._keeper.hasten()
            self._tell(LEAVING)
        newest = self._keeper.newest
        if newest is self._before and time.monotonic() - self._since < LIMIT.total_seconds():
            return
        if newest is not None:
            self._keeper.store.keep_here(newest.number, world_size=newest.world_size, keys=newest.keys)
        cluster.let_go()
