"""The engines that a run takes place on, as ranks, and where these meet."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from .cluster.channel import EngineChannel
from .cluster.cluster import EngineCluster
from .engine import worker
from .engine.program import free_port
from .engine.task import Task
from .errors import ClusterError

RENDEZVOUS_TIMEOUT = timedelta(seconds=60)
TICK = timedelta(milliseconds=100)  # between looks at whether rank 0 can answer at all


class Group:
    """The ranks that share a process group, and where they meet. Kept between cells while the group is whole."""

    def __init__(self, cluster: EngineCluster, num_ranks: int) -> None:
        self.cluster = cluster
        self.channel = EngineChannel(cluster.client)
        self.num_ranks = num_ranks
        self._rendezvous: Any = None

    @property
    def engine_ids(self) -> list[int]:
        """Ipyparallel's ids of the ranks' engines, in rank order."""
        return self.cluster.engine_ids[: self.num_ranks]

    @property
    def have_met(self) -> bool:
        """Whether it is known where the ranks meet, or there is one only."""
        return self._rendezvous is not None or self.num_ranks == 1

    def meet(self, task: Task) -> Task:
        """Return `task` with the place where its ranks meet, opened if there is none yet; a `ClusterError` says why rank 0 opens none."""
        if task.program_port is not None:
            self.disband()
            return replace(task, program_port=self._ask(free_port))
        if self._rendezvous is None and self.num_ranks > 1:
            self._rendezvous = self._ask(worker.host_store, uuid.uuid4().hex, "127.0.0.1", RENDEZVOUS_TIMEOUT)
        return replace(task, rendezvous=self._rendezvous)

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns on rank 0."""
        task = self.channel.call(self.engine_ids[0], function, *args)
        answered = threading.Event()
        task.on_done(answered.set)
        while not answered.wait(TICK.total_seconds()):
            if not self.cluster.controller_alive:
                raise ClusterError(self.cluster.unreachable)
            if self.cluster.is_stopped(0):
                self.cluster.send_signal(signal.SIGKILL, [0])
        try:
            return task.result()
        except Exception as error:
            gone = 0 in self.cluster.dead_ranks()
            raise ClusterError(
                "its process has ended" if gone else f"the others cannot meet there, {type(error).__name__}: {error}"
            ) from error

    def disband(self) -> None:
        """Meet anew the next time: somebody has left."""
        self._rendezvous = None
