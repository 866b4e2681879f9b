"""The engines of a run as ranks, their rendezvous, and how their tasks end."""

from __future__ import annotations

import pickle
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from ..cluster.base import Cluster
from ..cluster.client import EngineChannel
from ..cluster.client import Task as Call
from ..engine.comm.env_rendezvous import free_port
from ..engine.comm.process_group import Rendezvous
from ..engine.snapshot.rescue import rescue_file
from ..engine.task import Outcome, Task

KEY_SIZE = 32  # bytes


class WorkerGroup:
    """The ranks that share a process group, and their rendezvous. Kept between cells while no rank has left."""

    def __init__(self, cluster: Cluster, num_ranks: int) -> None:
        self.cluster = cluster
        self.channel = EngineChannel(cluster.client)
        self.num_ranks = num_ranks
        self._rendezvous: Rendezvous | None = None

    @property
    def engine_ids(self) -> list[int]:
        """Ids of the ranks' engines in ipyparallel, in rank order."""
        return self.cluster.engine_ids[: self.num_ranks]

    @property
    def have_met(self) -> bool:
        """Whether a rendezvous has been chosen, or is not needed for one rank."""
        return self._rendezvous is not None or self.num_ranks == 1

    def rendezvous(self, task: Task) -> Task:
        """Return `task` with the rendezvous of its ranks, a new one if there is none."""
        if task.strategy.owns_process_group:
            self.leave()
            return replace(task, program_port=free_port(), rendezvous=self._new_rendezvous())
        if self._rendezvous is None and self.num_ranks > 1:
            self._rendezvous = self._new_rendezvous()
        return replace(task, rendezvous=self._rendezvous)

    def _new_rendezvous(self) -> Rendezvous:
        return Rendezvous(self.cluster.rendezvous_endpoint(), secrets.token_bytes(KEY_SIZE))

    def leave(self) -> None:
        """Forget the rendezvous, because a rank has left: the next task gets a new one."""
        self._rendezvous = None


# How a rank's task ended.


@dataclass
class WorkerResult:
    """How one rank's task ended: with an outcome, or with the engine lost for a `reason`.

    For a lost engine, `outcome` is what could be saved, if anything. An engine that received a SIGINT from elsewhere counts as lost.
    `killed`: this process has killed it, because it did not leave after another rank's failure or the user's interrupt.
    """

    rank: int
    outcome: Outcome | None
    reason: str = ""
    killed: bool = False

    @property
    def lost(self) -> bool:
        """Whether the engine is gone, and this process did not kill it."""
        return bool(self.reason) and not self.killed


_GONE = "its process has ended"
_STUCK = "its process neither reported nor computed any more, and was ended"
_SILENT = "it does not answer any more"
_INTERRUPTED = "its process was interrupted by a signal, SIGINT"
_LEAVING = "its host is being taken away"
_OF_SEVERAL = {
    _LEAVING: "their hosts are being taken away",
    _GONE: "their processes have ended",
    _STUCK: "their processes neither reported nor computed any more, and were ended",
    _SILENT: "they do not answer any more",
    _INTERRUPTED: "their processes were interrupted by a signal, SIGINT",
}
ON_ITS_WAY = timedelta(seconds=1)
"""Time for an answer to arrive that a process sent before its end."""


def reasons_of(lost: Sequence[WorkerResult]) -> str:
    """Return why these engines were lost, each reason once."""
    counts = Counter(end.reason for end in lost)
    return ", ".join(_OF_SEVERAL.get(reason, reason) if count > 1 else reason for reason, count in counts.items())


class RankEnds:
    """How the ranks of a task ended, as far as known.

    Parameters
    ----------
    task : Task
    cluster : Cluster
        Where the task runs.
    calls : sequence of Call
        The ranks' calls, in rank order; the caller appends them later.

    Attributes
    ----------
    killed, interrupted : set of int
        Ranks whose engines this process has killed or interrupted.
    stuck : set of int
        Ranks whose engines were killed because they were idle and silent. They count as lost, those of `killed` do not.
    """

    def __init__(self, task: Task, cluster: Cluster, calls: Sequence[Call]) -> None:
        self._task, self._cluster, self._calls = task, cluster, calls
        self._ends: dict[int, WorkerResult] = {}
        self.killed: set[int] = set()
        self.interrupted: set[int] = set()
        self.stuck: set[int] = set()
        self._ended: dict[int, float] = {}  # rank → time when its process was first seen to have ended

    def is_over(self, rank: int) -> bool:
        """Return whether `rank` has ended, or its end cannot be learned any more.

        Ranks of a cell that outlives the controller write their outcomes to files.
        """
        if self._calls[rank].done or self._has_ended_unanswered(rank):
            return True
        if self._cluster.controller_alive:
            return False
        return not self._task.strategy.outlives_controller or self._cluster.has_ended(rank) or self.file(rank).exists()

    def _has_ended_unanswered(self, rank: int) -> bool:
        """Return whether the engine of `rank` has ended long enough ago for its last answer to have arrived.

        The controller fails an engine's call when the engine dies, but not a call that was still in flight to it.
        """
        if not self._cluster.has_ended(rank):
            return False
        return time.monotonic() - self._ended.setdefault(rank, time.monotonic()) > ON_ITS_WAY.total_seconds()

    def file(self, rank: int) -> Path:
        """Return the file with the outcome of `rank`, if it does not arrive as a message."""
        return rescue_file(self._task.snapshot_folder, rank)

    def of(self, rank: int) -> WorkerResult:
        """Return how `rank`, which is over, ended."""
        if rank not in self._ends:
            self._ends[rank] = self._found(rank)
        return self._ends[rank]

    def _found(self, rank: int) -> WorkerResult:
        call = self._calls[rank]
        if not call.done:
            outcome = self._left(rank)
            comes_home = outcome is not None and self._task.strategy.outlives_controller
            return WorkerResult(
                rank, outcome, "" if comes_home else self._cluster.unreachable or self._gone(rank), killed=rank in self.killed
            )
        try:
            answered: Outcome = pickle.loads(call.result())
            is_ended = answered.failure is not None and self._task.strategy.can_continue
            if is_ended and self._cluster.is_leaving:  # child processes of the cell may have been ended by the scheduler's signal
                return WorkerResult(rank, answered, _LEAVING)
            return WorkerResult(rank, answered, _INTERRUPTED if is_ended and answered.interrupted and rank not in self.interrupted else "")
        except Exception as error:
            if self._cluster.has_ended(rank):
                reason = self._gone(rank)
            elif self._cluster.unreachable:
                reason = self._cluster.unreachable
            elif getattr(error, "ename", "") == "EngineError":  # a stopped process sends no heartbeats
                reason = _SILENT
            else:
                reason = f"{type(error).__name__}: {error}"
            return WorkerResult(rank, self._left(rank), reason, killed=rank in self.killed)

    def _gone(self, rank: int) -> str:
        return self._cluster.why_lost(rank) or (_STUCK if rank in self.stuck else _GONE)

    def _left(self, rank: int) -> Outcome | None:
        file = self.file(rank)
        outcome: Outcome | None = pickle.loads(file.read_bytes()) if file.exists() else None
        return outcome
