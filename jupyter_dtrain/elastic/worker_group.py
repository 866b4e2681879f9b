"""The engines that a run takes place on, as ranks, and where these meet."""

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
    """The ranks that share a process group, and where they meet. Kept between cells while the group is whole."""

    def __init__(self, cluster: Cluster, num_ranks: int) -> None:
        self.cluster = cluster
        self.channel = EngineChannel(cluster.client)
        self.num_ranks = num_ranks
        self._rendezvous: Rendezvous | None = None

    @property
    def engine_ids(self) -> list[int]:
        """Ipyparallel's ids of the ranks' engines, in rank order."""
        return self.cluster.engine_ids[: self.num_ranks]

    @property
    def have_met(self) -> bool:
        """Whether it is known where the ranks meet, or there is one only."""
        return self._rendezvous is not None or self.num_ranks == 1

    def rendezvous(self, task: Task) -> Task:
        """Return `task` with the place where its ranks meet, a new one if there is none yet."""
        if task.strategy.owns_process_group:
            self.leave()
            return replace(task, program_port=free_port(), rendezvous=self._new_rendezvous())
        if self._rendezvous is None and self.num_ranks > 1:
            self._rendezvous = self._new_rendezvous()
        return replace(task, rendezvous=self._rendezvous)

    def _new_rendezvous(self) -> Rendezvous:
        return Rendezvous(self.cluster.rendezvous_endpoint(), secrets.token_bytes(KEY_SIZE))

    def leave(self) -> None:
        """Meet anew the next time: somebody has left."""
        self._rendezvous = None


# How a rank's task ended.


@dataclass
class WorkerResult:
    """How one rank's task ended: with an outcome, or with the engine gone, for a `reason`.

    Then the outcome is what could be saved, if anything. An engine that somebody else than we has interrupted counts as gone. `killed`: by
    us, because it did not leave when another rank had failed or the user had asked.
    """

    rank: int
    outcome: Outcome | None
    reason: str = ""
    killed: bool = False

    @property
    def lost(self) -> bool:
        """Whether the engine is gone, and not by us."""
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
"""Time that an answer may take which a process has sent before its end."""


def reasons_of(lost: Sequence[WorkerResult]) -> str:
    """Return why these engines were lost, each reason once."""
    counts = Counter(end.reason for end in lost)
    return ", ".join(_OF_SEVERAL.get(reason, reason) if count > 1 else reason for reason, count in counts.items())


class RankEnds:
    """How the ranks of a task end, as far as that is known.

    Parameters
    ----------
    task : Task
    cluster : Cluster
        Where it runs.
    calls : sequence of Call
        That of each rank, in rank order, once it has been made.

    Attributes
    ----------
    killed, interrupted : set of int
        Ranks whose engines we have ended, or interrupted.
    stuck : set of int
        Ranks whose engines were ended because they did nothing any more: lost, where those that are `killed` are not.
    """

    def __init__(self, task: Task, cluster: Cluster, calls: Sequence[Call]) -> None:
        self._task, self._cluster, self._calls = task, cluster, calls
        self._ends: dict[int, WorkerResult] = {}
        self.killed: set[int] = set()
        self.interrupted: set[int] = set()
        self.stuck: set[int] = set()
        self._ended: dict[int, float] = {}  # when the process of a rank was seen to have ended

    def is_over(self, rank: int) -> bool:
        """Return whether `rank` has ended, or cannot come to an end that anybody hears of.

        Ranks of a cell that goes on without a controller leave what they come to in a file.
        """
        if self._calls[rank].done or self._has_ended_unanswered(rank):
            return True
        if self._cluster.controller_alive:
            return False
        return not self._task.strategy.outlives_controller or self._cluster.has_ended(rank) or self.file(rank).exists()

    def _has_ended_unanswered(self, rank: int) -> bool:
        """Return whether the engine of `rank` has ended, long enough ago for its last answer to have come.

        The controller fails the call of an engine as it hears of its death, but not one that was on its way there at that moment.
        """
        if not self._cluster.has_ended(rank):
            return False
        return time.monotonic() - self._ended.setdefault(rank, time.monotonic()) > ON_ITS_WAY.total_seconds()

    def file(self, rank: int) -> Path:
        """Return where the outcome of `rank` lies if it does not come home by itself."""
        return rescue_file(self._task.snapshot_folder, rank)

    def of(self, rank: int) -> WorkerResult:
        """Return how `rank`, which is over, has ended."""
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
            if is_ended and self._cluster.is_leaving:  # processes that the cell has started may have ended by the scheduler's signal
                return WorkerResult(rank, answered, _LEAVING)
            return WorkerResult(rank, answered, _INTERRUPTED if is_ended and answered.interrupted and rank not in self.interrupted else "")
        except Exception as error:
            if self._cluster.has_ended(rank):
                reason = self._gone(rank)
            elif self._cluster.unreachable:
                reason = self._cluster.unreachable
            elif getattr(error, "ename", "") == "EngineError":  # a process that is stopped does not tell that it lives
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
