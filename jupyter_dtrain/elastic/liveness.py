"""Engines that are there and do nothing: a process that is stopped neither ends by itself nor frees those who wait for it."""

from __future__ import annotations

import time
from datetime import timedelta

from ..cluster.base import Cluster
from .generation import Generation

LIMIT = timedelta(seconds=5)
"""Time in which a living engine tells something."""
BETWEEN = LIMIT / 2
"""Time between two looks at what the silent ones have computed."""


class LivenessCheck:
    """Ends engines that neither tell anything nor compute, whose ranks are lost then."""

    def __init__(self) -> None:
        self._computed: dict[int, float | None] = {}  # rank → seconds that its process had computed at the last look
        self._looked = time.monotonic()

    def look(self, execution: Generation, cluster: Cluster) -> None:
        """Look at the ranks of `execution`, where it is time."""
        if time.monotonic() - self._looked < BETWEEN.total_seconds():
            return
        self._looked = time.monotonic()
        cluster.end_stopped_guard()
        computed = {rank: cluster.cpu_time(rank) for rank in execution.silent_ranks(LIMIT)}
        stuck = [rank for rank, seconds in computed.items() if seconds == self._computed.get(rank)]
        self._computed = computed
        if stuck:
            execution.end_stuck(stuck)
