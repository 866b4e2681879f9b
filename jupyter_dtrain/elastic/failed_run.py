"""Post-mortem of a failed cell: which ranks keep its frames, and debugger commands for one of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ..cluster.base import Cluster
from ..cluster.client import EngineChannel
from ..engine import post_mortem
from ..engine.task import Task
from ..errors import UsageError
from .worker_group import WorkerResult

TICK = timedelta(milliseconds=100)  # between checks that the engine is alive
PATIENCE = timedelta(seconds=3)
"""Time for an interrupted debugger command to return; after that its engine is restarted."""


class FailedRun:
    """The frames of a failed cell, which its engines keep until the next cell.

    Parameters
    ----------
    task : Task
    cluster : Cluster
    ends : sequence of WorkerResult
        How each rank ended.
    restart : callable
        Restarts engines: (cluster, ranks). Called for an engine whose debugger command cannot be interrupted.

    Attributes
    ----------
    trial : str
        Name of the cell's trial, if it was one.
    """

    def __init__(
        self, task: Task, cluster: Cluster, ends: Sequence[WorkerResult], *, restart: Callable[[Cluster, Sequence[int]], None]
    ) -> None:
        self._run_id, self._cluster, self._restart = task.run_id, cluster, restart
        self._owns_process_group = task.strategy.owns_process_group
        self._engine_ids = list(cluster.engine_ids)  # as of the run: an engine may be replaced later
        self._failures = {end.rank: end.outcome.failure for end in ends if end.outcome is not None and end.outcome.failure is not None}
        self._lost = [end.rank for end in ends if end.reason or end.killed]
        self._num_ranks = len(ends)
        self.trial = ""

    @property
    def has_failed(self) -> bool:
        """Whether any rank raised an error or was lost."""
        return bool(self._failures or self._lost)

    def rank_at_fault(self, wanted: int | None = None) -> int:
        """Return the rank to debug: `wanted`, or the first one whose error is not a consequence of another rank's.

        Raises
        ------
        UsageError
            That rank keeps no frames.
        """
        if self._owns_process_group:
            raise UsageError(
                "No frames are kept of a cell with --strategy none: its engines are restarted after it. Put `try:` around the part that "
                "fails, and print the values."
            )
        primary = [rank for rank, failure in self._failures.items() if not failure.secondary]
        rank = wanted if wanted is not None else next(iter([*primary, *self._lost, *self._failures]))
        if not 0 <= rank < self._num_ranks:
            raise UsageError(f"--rank {rank}: the cell ran on {self._num_ranks} ranks, counted from 0.")
        if rank in self._lost:
            raise UsageError(f"The engine of rank {rank} was lost, and the frames of its cell with it.{self._others(rank)}")
        if rank not in self._failures:
            raise UsageError(f"Rank {rank} had no error, so it keeps no frames.{self._others(rank)}")
        return rank

    def headline(self, rank: int) -> str:
        """Return the error of `rank` in one line, and how to debug the other ranks."""
        failure = self._failures[rank]
        error = f"{failure.name}: {failure.message}".partition("\n")[0].rstrip(".: ")
        which = f"rank {rank}" + (f" in the trial {self.trial}" if self.trial else "")
        return f"Post-mortem of {which}: {error}.{self._others(rank)} q leaves and frees the frames."

    def _others(self, rank: int) -> str:
        others = [other for other in self._failures if other != rank and other not in self._lost]
        if not others or not self._cluster.controller_alive:
            return ""
        names = ", ".join(map(str, others))
        return f" `%distribute debug --rank N` looks at {'rank' if len(others) == 1 else 'ranks'} {names}."

    def begin(self, rank: int, theme: str) -> tuple[str, bool]:
        """Start the debugger on the frames of `rank`; return its output, and whether the session is over."""
        return self._ask(rank, post_mortem.begin, theme)

    def command(self, rank: int, line: str) -> tuple[str, bool]:
        """Run one debugger command; return its output, and whether the session is over.

        A keyboard interrupt interrupts the command; a second one restarts the engine.
        """
        return self._ask(rank, post_mortem.command, line)

    def _ask(self, rank: int, function: Callable[[str, str], tuple[str, bool]], text: str) -> tuple[str, bool]:
        if self._is_gone(rank):
            return self._gone(rank), True
        task = EngineChannel(self._cluster.client).call(self._engine_ids[rank], function, self._run_id, text)
        done = threading.Event()
        task.on_done(done.set)
        until: float | None = None
        while not done.is_set():
            try:
                done.wait(TICK.total_seconds())
                if not done.is_set() and self._is_gone(rank):
                    return self._gone(rank), True
            except KeyboardInterrupt:
                if until is not None:
                    until = 0.0
                else:
                    until = time.monotonic() + PATIENCE.total_seconds()
                    self._cluster.send_signal(signal.SIGINT, [rank])
            if until is not None and time.monotonic() > until and not done.is_set():
                self._restart(self._cluster, [rank])
                return f"*** The line could not be interrupted: the engine of rank {rank} starts anew, without the frames.\n", True
        try:
            answer: tuple[str, bool] = task.result()
        except Exception as error:
            return (self._gone(rank) if _is_of_engine(error) else f"*** {type(error).__name__}: {error}\n"), True
        return answer

    def _is_gone(self, rank: int) -> bool:
        cluster = self._cluster
        return not cluster.controller_alive or cluster.has_ended(rank) or cluster.engine_ids[rank] != self._engine_ids[rank]

    def _gone(self, rank: int) -> str:
        return f"The engine of rank {rank} is gone, and the frames with it.{self._others(rank)}\n"


def _is_of_engine(error: Any) -> bool:
    return type(error).__name__ == "EngineError" or getattr(error, "ename", "") == "EngineError"
