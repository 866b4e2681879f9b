"""Supervise a run over as many generations of ranks as it takes.

The agent asks all ranks for snapshots, rarely enough that the cost is negligible. When an engine dies, the agent ends the
generation, replaces the engine, and starts the next generation from the newest complete snapshot. That one continues with the
same batches in the same order, so the result is the same.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta

from ..checkpoint.load import RollBack
from ..checkpoint.snapshot_index import SnapshotKeeper
from ..checkpoint.writer import CheckpointWriter
from ..cluster.base import Cluster
from ..engine.task import Task
from ..errors import UsageError
from ..protocol import RECORDED_EVENTS, Message, Notice
from ..protocol.bus import Bus
from ..strategies import DEFAULT, Feature, find
from ..system.interpreter import Interrupts
from .balance import Balance, describe_shares
from .departure import Departure
from .generation import Generation
from .liveness import LivenessCheck
from .main_thread_output import Output
from .next_generation import NextGeneration
from .pause import Pauses
from .recovery import EngineReplacement, Restarts
from .run_events import AllPaused, Interrupted, RankShown
from .snapshot_outcome import fill_from_snapshot, stop_there
from .watchdog import Watchdog
from .worker_group import WorkerGroup, WorkerResult

SPARE_AFTER = timedelta(seconds=2)
"""Training time after which a spare engine is started."""


class Agent:
    """Run a task on a group of ranks until it ends, and replace engines that die.

    Any thread may call the orders (:meth:`stop` to :meth:`restart`), which return at once. `restarts` holds the engines that the user
    wants restarted. `interrupted` and `pressed` tell of a keyboard interrupt during a replacement, and after the last generation.

    Parameters
    ----------
    group : WorkerGroup
    keeper : SnapshotKeeper
    writer : CheckpointWriter, optional
        ``None``: no checkpoints are written to disk.
    output : Output
    events : Bus
        Gets the engines' events and those of ``run_events.py``.
    renew : callable
        Takes a group whose controller is gone, and returns a group of equal size on a cluster that has the old cluster's files.
    """

    def __init__(
        self,
        group: WorkerGroup,
        *,
        keeper: SnapshotKeeper,
        writer: CheckpointWriter | None,
        output: Output,
        events: Bus,
        renew: Callable[[WorkerGroup], WorkerGroup],
    ) -> None:
        self._keeper, self._writer, self._output, self._events = keeper, writer, output, events
        self._execution: Generation | None = None
        self._stall: Watchdog | None = None
        self._balance: Balance | None = None
        self._stopping = False
        self._strategy = find(DEFAULT)
        self._roll_back = RollBack()
        self._pauses = Pauses(group.num_ranks, on_paused=self._note_paused)
        self._liveness, self._departure = LivenessCheck(), Departure(keeper, self._tell)
        self.interrupted = self.pressed = False
        self.restarts = Restarts()
        self._replacement = EngineReplacement(
            group, restarts=self.restarts, renew=renew, events=events, tell=self._tell, on_progress=output.progress
        )
        self._next = NextGeneration(
            self._replacement, keeper=keeper, pauses=self._pauses, roll_back=self._roll_back, events=events, tell=self._tell
        )

    @property
    def cluster(self) -> Cluster:
        """The cluster that the task currently runs on."""
        return self._replacement.cluster

    def stop(self) -> str:
        """Ask all ranks to stop; return a sentence for the user."""
        self._stopping = True
        if self._execution is not None:
            self._execution.stop()
        return "Stopping after this step." if self._strategy.counts_steps else "Interrupting the cell, which distributes itself."

    def pause(self) -> None:
        """Ask all ranks to wait at the end of a step; raise a `UsageError` if they cannot."""
        self._check_orders(Feature.PAUSE, "Pausing")
        number = self._pauses.start()
        if self._execution is not None:
            self._execution.pause(number)

    def resume(self) -> None:
        """End a pause; raise a `UsageError` if there is none."""
        number = self._pauses.end()
        if self._execution is not None:
            self._execution.resume(number)

    def write_checkpoint(self) -> None:
        """Write the next possible checkpoint to disk and pin it; raise a `UsageError` if the run cannot have one."""
        self._check_orders(Feature.SNAPSHOT, "Keeping a checkpoint")
        if self._writer is None:
            raise UsageError("This run has no folder of its own to keep a checkpoint in: the folder of runs cannot be written.")
        self._writer.want(self._keeper)

    def roll_back(self, step: int) -> None:
        """Resume the run from its checkpoint of `step`; raise a `UsageError` or `CheckpointError` if it cannot."""
        self._check_orders(Feature.ROLLBACK, "Going back to a checkpoint")
        if self._writer is None:
            raise UsageError("This run has no folder of its own, and so no checkpoints.")
        self._roll_back.start(step, self._writer, self._keeper, on_read=self._call_back)

    def _call_back(self) -> None:
        if self._execution is not None:
            self._execution.call_back()

    def restart(self, rank: int) -> None:
        """Replace the engine of `rank` and resume from the newest snapshot; raise a `UsageError` if the run cannot."""
        self._check_orders(Feature.SNAPSHOT, "Restarting an engine during a run")
        if not 0 <= rank < self._replacement.group.num_ranks:
            raise UsageError(f"Rank {rank} takes no part in this run: restart its engine after it.")
        self.restarts.order(rank)

    def _check_orders(self, feature: Feature, what: str) -> None:
        self._strategy.require(feature, what)
        if self._is_stopping:
            raise UsageError("The run is stopping.")

    @property
    def _is_stopping(self) -> bool:
        return self._stopping or (self._execution is not None and self._execution.interrupted)

    def supervise(self, task: Task, *, on_tick: Callable[[], None]) -> list[WorkerResult]:
        """Run `task` on all ranks and return how each rank ended, in rank order."""

        def tick() -> None:
            on_tick()
            self._look_after(execution)

        ends: list[WorkerResult] = []
        self._strategy = task.strategy
        self._replacement.elastic = task.options.elastic
        self._balance = Balance(task.world_size) if task.options.balance == "auto" and task.world_size > 1 else None
        try:
            following: Task | None = self._next.met(task)
            while following is not None:
                task = following
                self._execution = execution = self._begun(task)
                with self.cluster.at_work():
                    ends = execution.execute(on_tick=tick)
                cause = self._next.reason(ends)
                if not cause or execution.interrupted or self._stopping or not task.strategy.can_continue:
                    execution.show_held()
                    return ends
                try:
                    following = self._next.after(cause, task, execution)
                except KeyboardInterrupt:  # the user does not want to wait for another engine
                    self.interrupted = True
                    stop_there(ends, self._keeper, task)
                    execution.show_held()
                    return ends
            return ends
        finally:
            self._execution = None
            with Interrupts(wake=lambda: None) as late:  # writing a checkpoint may take long, and the results come after it
                fill_from_snapshot(ends, self._keeper, task)
                if self._writer is not None:
                    self._writer.finish(self._keeper, self.cluster.blob_dir, through=bool(ends) and not any(end.reason for end in ends))
                    self._tell_all(self._writer.news())
                self._keeper.store.clear()
            self.pressed |= late.count > 0

    def _begun(self, task: Task) -> Generation:
        """Return the next generation, with the standing orders (stop, pause) repeated to it."""
        self._keeper.start(task.world_size)
        events = Bus()
        execution = Generation(self._replacement.group, task, events=events, output=self._output)
        where, through = execution.ask_where, execution.is_through

        def computed() -> list[float | None]:
            return [*map(self.cluster.cpu_time, range(self._replacement.group.num_ranks))]

        self._stall = stall = Watchdog(task.world_size, ask=where, say=self._tell, computed=computed, through=through)
        events.subscribe(Message, self._keeper.note)
        events.subscribe(Message, self._pauses.note)
        if self._balance is not None:
            events.subscribe(Message, self._balance.note)
        events.subscribe(Message, stall.note)
        for kind in (*RECORDED_EVENTS, RankShown, Interrupted):
            events.subscribe(kind, self._events.publish)
        events.subscribe(RankShown, lambda _: stall.note(None))
        if self._stopping:
            execution.stop()
        if paused := self._pauses.resume(task.world_size):
            execution.pause(paused)
        elif task.pause:  # the pause has ended since the task was made
            execution.resume(task.pause)
        return execution

    def _note_paused(self) -> None:
        self._keeper.hasten()  # if an engine dies during the pause, the others lose no step
        if not self._is_stopping:
            self._events.publish(AllPaused())

    def _look_after(self, execution: Generation) -> None:
        """Do what is due; called a few times a second."""
        if unwanted := execution.at_work(self.restarts.ranks):
            self.cluster.send_signal(signal.SIGKILL, unwanted)
        self._liveness.look(execution, self.cluster)
        self._departure.look(self.cluster)
        if self._stall is not None:
            self._stall.note(None) if self._pauses.reached else self._stall.look()
        if self._balance is not None and (speeds := self._balance.due()) is not None:
            execution.share_by(self._balance.number, speeds)
            self._tell_all([describe_shares(speeds)] if self._balance.number == 1 else [])
        if (number := (keeper := self._keeper).due(idle=self._pauses.reached)) is not None:
            execution.take_snapshot(number)
        self._tell_all(keeper.news())
        if self._writer is not None:
            self._writer.offer(keeper, self.cluster.blob_dir)
            self._tell_all(self._writer.news())
        if self._replacement.may_grow:
            self._next.grow(execution)
        elif keeper.training_since is not None and time.monotonic() - keeper.training_since > SPARE_AFTER.total_seconds():
            self.cluster.prepare_spare()

    def _tell_all(self, texts: list[str]) -> None:
        for text in texts:
            self._tell(text)

    def _tell(self, text: str) -> None:
        """Show a line in the cell and in the sidebar."""
        self._output.say(text)
        self._events.publish(Notice(rank=0, text=text))
