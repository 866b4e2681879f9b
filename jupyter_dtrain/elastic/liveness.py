"""Detect stopped engines: a stopped process (SIGSTOP) neither ends nor frees the ranks that wait for it."""

from __future__ import annotations

import time
from datetime import timedelta

from ..cluster.base import Cluster
from .generation import Generation

LIMIT = timedelta(seconds=5)
"""Longest time between two reports of a living engine."""
BETWEEN = LIMIT / 2
"""Time between two looks at the CPU time of silent engines."""


class LivenessCheck:
    """Kill engines that neither report nor use CPU time; their ranks then count as lost."""

    def __init__(self) -> None:
        self._computed: dict[int, float | None] = {}  # rank → CPU seconds of its process at the last look
        self._looked = time.monotonic()

    def look(self, execution: Generation, cluster: Cluster) -> None:
        """Check the ranks of `execution`, if `BETWEEN` has passed since the last check."""
        if time.monotonic() - self._looked < BETWEEN.total_seconds():
            return
        self._looked = time.monotonic()
        cluster.end_stopped_guard()
        computed = {rank: cluster.cpu_time(rank) for rank in execution.silent_ranks(LIMIT)}
        stuck = [rank for rank, seconds in computed.items() if seconds == self._computed.get(rank)]
        self._computed = computed
        if stuck:
            execution.end_stuck(stuck)
