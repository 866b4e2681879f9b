"""The engines of a cluster by rank: the process of each, and replacement of one engine by another."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from ..errors import ClusterError
from ..protocol import EngineInfo
from . import folders as folder_files
from .abstract_processes import MakeProcesses
from .base import Cluster, Progress
from .crash_log import last_words
from .devices import DevicePlan
from .launch_config import CONTROLLER
from .launcher import Member, ProcessLauncher
from .spare import Spare
from .startup import NEXT_STEP, STEP, Arrival

WARM_MODULES = ("torch", "torch.distributed", "torch.utils.data", "cloudpickle", "jupyter_dtrain.engine.worker")


class RankedEngines(Cluster):
    """The engines of a cluster in rank order, with at most one spare.

    Parameters
    ----------
    processes : callable
        Makes the `Processes`, from folders to remove at the end and a callback for the name and exit status of each ended process.

    Attributes
    ----------
    client : ipyparallel.Client
        The connection to the engines.
    """

    def __init__(self, processes: MakeProcesses) -> None:
        self._members: list[Member] = []  # in rank order
        self.client = None
        self._let_go: list[DevicePlan] = []  # plans of dropped ranks
        self._folders = folder_files.Folders()
        try:
            self._processes = processes(self._folders.all, self._on_exit)
        except BaseException:
            self._folders.remove()
            raise
        self._launcher = ProcessLauncher(self._processes, self._folders, WARM_MODULES)
        self._spare = self._no_spare()

    @abstractmethod
    def _on_exit(self, name: str, status: int) -> None:
        """Handle the end of a process."""

    def _no_spare(self) -> Spare:
        return self._spare_of(lambda: self._launcher.start_engine(self.device_plans[0]))

    def _spare_of(self, start: Callable[[], Member], **needs: Any) -> Spare:
        return Spare(
            start=start,
            has_ended=lambda name: name in self._processes.statuses,
            is_registered=lambda engine_id: engine_id in self.client.ids,
            warm_up=self._warm_up,
            **needs,
        )

    @property
    def device_plans(self) -> list[DevicePlan]:
        """The device of each rank."""
        return [member.plan for member in self._members]

    @property
    def engine_ids(self) -> list[int]:
        """Ids of the engines in ipyparallel, in rank order."""
        return [member.engine_id for member in self._members]

    @property
    def engines(self) -> list[EngineInfo]:
        """The engines in rank order."""
        return [member.info(self._processes.pids) for member in self._members]

    @property
    def view(self) -> Any:
        """A ``DirectView`` of all engines in rank order."""
        return self.client.direct_view(self.engine_ids)

    @property
    def warm(self) -> bool:
        """Whether every engine has imported torch; if not, a cell waits for that."""
        return all(member.warm for member in self._members)

    def has_ended(self, rank: int) -> bool:
        """Return whether the process of the engine of `rank` has ended, independent of the controller."""
        return not self._processes.guard_alive or self._members[rank].name in self._processes.statuses

    def pids(self) -> dict[str, int]:
        """Return the pids of the guard, the controller and the engines by name."""
        return {"guard": self._processes.guard_pid, **self._processes.pids}

    def exit_status(self, rank: int | None) -> int | None:
        """Return the exit status of the engine of `rank` (``None``: of the controller) if known; negative: the signal."""
        return self._processes.statuses.get(CONTROLLER if rank is None else self._members[rank].name)

    def last_words(self, rank: int) -> str:
        """Return the last output of the engine of `rank`, without routine log lines."""
        return self._folders.log_tail(self._members[rank].name, last_words)

    def cpu_time(self, rank: int) -> float | None:
        """Return the CPU seconds of the engine of `rank`, ``None`` if it is gone."""
        return self._processes.cpu_time(self._members[rank].name)

    def is_stopped(self, rank: int) -> bool:
        """Return whether the process of the engine of `rank` is stopped (SIGSTOP)."""
        return self._processes.is_stopped(self._members[rank].name)

    def wait_warm(self, limit: timedelta) -> bool:
        """Wait at most `limit` until all engines have imported torch, or one is dead or stopped; return whether all have."""
        deadline = time.monotonic() + limit.total_seconds()
        while not self.warm and self.alive and not any(map(self.is_stopped, range(len(self._members)))) and time.monotonic() < deadline:
            time.sleep(STEP.total_seconds())
        return self.warm

    def end_stopped_guard(self) -> None:
        """Kill a guard that stays stopped; the guard itself does this for other processes."""
        self._processes.end_stopped_guard()

    def send_signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to the engines of `ranks` (all by default), also to an engine that no longer answers messages."""
        for rank in range(len(self._members)) if ranks is None else ranks:
            self._processes.signal(self._members[rank].name, number)

    def replace(self, ranks: Sequence[int], *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """Replace the ended engines of `ranks`, and wait until the new ones have imported torch.

        Raises
        ------
        ClusterError
            They did not come up.
        """
        arrival = self._arrival(on_progress, limit)
        others = []
        for rank in ranks:
            lost = self._members[rank]
            self._processes.forget(lost.name)
            self._members[rank] = member = self._spare.acquire(lost.plan) or self._launcher.start_engine(lost.plan)
            member.has_place = False
            others.append(member)
        try:
            arrival.of_engines(self.engine_ids)
        except ClusterError:  # an elastic run may continue with those that have come up
            for member in others:
                if member.engine_id in self.client.ids:
                    self._settle(member)
            raise
        tasks = [self._settle(member) for member in others]
        arrival.of(
            lambda: all(member.warm for member in others) and all(task.ready() for task in tasks), lambda: "the new engine imports torch"
        )

    def restart(self, ranks: Sequence[int], *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """Kill and replace the engines of `ranks`; raise a `ClusterError` if the new ones do not come up."""
        deadline = time.monotonic() + limit.total_seconds()
        self.send_signal(signal.SIGKILL, ranks)
        while left := set(ranks).difference(self.dead_ranks()):
            self._processes.end_stopped_guard()  # a stopped guard would not forward signals
            if time.monotonic() > deadline:
                raise ClusterError(f"The engine of rank {min(left)} cannot be ended.{NEXT_STEP}")
            self._processes.wait_change(STEP)
        self.replace(ranks, limit=limit, on_progress=on_progress)

    def prepare_spare(self) -> bool:
        """Start a spare engine if there is none; return whether it is ready. Does not block; called repeatedly."""
        self._spare.prepare()
        return self._spare.ready

    def drop(self, ranks: Sequence[int]) -> None:
        """Remove the engines of `ranks`, which could not be replaced; higher ranks move up."""
        self.send_signal(signal.SIGKILL, ranks)  # one may only be slow
        self._let_go += [self._members[rank].plan for rank in ranks]
        self._members = [member for rank, member in enumerate(self._members) if rank not in ranks]
        for rank, member in enumerate(self._members):
            member.plan = replace(member.plan, rank=rank)

    def inherit(self, old: Self) -> None:
        """Take the place of `old`, including dropped ranks that can be taken back."""
        self._let_go = old._let_go

    def take_back(self) -> int:
        """Turn the spare engine into one more rank at the end; return how many were added."""
        member = self._spare.acquire(self._let_go[-1]) if self._let_go else None
        if member is None:
            return 0
        self._let_go.pop()
        self._add(member)
        return 1

    def _add(self, member: Member) -> int:
        """Make an engine the last rank; return that rank."""
        member.plan = replace(member.plan, rank=len(self._members))
        self._members.append(member)
        self._take_place(member)
        return member.plan.rank

    def missing_ranks(self) -> list[int]:
        """Return the ranks without an engine: it has ended, has not come up, or was not replaced."""
        dead, there = self.dead_ranks(), () if self.client is None else self.client.ids
        return [rank for rank, one in enumerate(self._members) if rank in dead or one.engine_id not in there or not one.has_place]

    def _arrival(self, tell: Progress | None, limit: timedelta) -> Arrival:
        """Return an `Arrival` that waits at most `limit` for processes, and reports progress."""
        return Arrival(
            self._processes,
            log_tail=self._folders.log_tail,
            names=lambda: [member.name for member in self._members],
            registered=lambda: self.client.ids if self.client is not None else None,
            tell=tell,
            limit=limit,
        )

    def _warm_up(self, member: Member) -> None:
        from .forkserver import warm_up

        member.warming = self.client[member.engine_id].apply_async(warm_up, WARM_MODULES)

    def _take_place(self, member: Member) -> Any:
        from .forkserver import take_place

        return self.client[member.engine_id].apply_async(take_place, member.plan.environment())

    def _settle(self, member: Member) -> Any:
        """Make a registered engine its rank, before its first task."""
        self._warm_up(member)
        task = self._take_place(member)
        member.has_place = True
        return task
