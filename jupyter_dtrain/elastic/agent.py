"""A cell's way to its end, over as many generations of ranks as it takes.

While the cell runs, all ranks are asked for a snapshot from time to time, so seldom that it costs next to nothing. When an
engine dies, the others are freed, a new engine takes its place, and the next generation goes on from the newest snapshot that
every rank has written: with the same batches in the same order, so with the same result.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..checkpoint.host_snapshots import snapshots_on
from ..checkpoint.load import RollBack
from ..checkpoint.snapshot_index import ON_ITS_WAY, CompleteSnapshot, SnapshotKeeper
from ..checkpoint.writer import CheckpointWriter
from ..cluster.base import Cluster
from ..engine.side_effects.file_journal import cut_back, go_on_from
from ..engine.task import Resume, Task
from ..errors import UsageError
from ..protocol import Homeward, Message, Notice, Paused, ShardLeft, SnapshotTaken, Standing, StateSize
from ..strategies import DEFAULT, Feature, find
from ..system.interpreter import Interrupts
from .balance import Balance, describe_shares
from .generation import Generation, Output
from .liveness import LivenessCheck
from .pause import Pauses
from .recovery import EngineReplacement, RestartReason, Restarts, place_of, salvage, stop_there
from .watchdog import Watchdog
from .worker_group import WorkerGroup, WorkerResult

SPARE_AFTER = timedelta(seconds=2)
"""Training that is worth an engine in reserve."""


class Agent:
    """Runs a task on a group of ranks until it has ended, whatever happens to the engines.

    What is ordered (:meth:`stop`, :meth:`pause`, :meth:`resume`, :meth:`write_checkpoint`, :meth:`roll_back`, :meth:`restart`) may be
    ordered on any thread, and the methods return at once. `restarts` has the engines that are still to be restarted, and `interrupted` says
    whether there was a keyboard interrupt while others took over, `pressed` after the end.

    Parameters
    ----------
    group : WorkerGroup
    keeper : SnapshotKeeper
    writer : CheckpointWriter, optional
        ``None``: nothing is written to disk.
    output : Output
    on_event : callable
        Gets each engine event, on the client's IO thread.
    on_output : callable
        Gets what each rank shows: (rank, kind and content of the message), on that thread too.
    on_paused : callable
        Told when all ranks wait in a pause.
    on_replaced : callable
        Told of the number of ranks when engines have been replaced, or are fewer or more.
    on_back : callable
        Told of the step that the run has gone back to, while no rank is at work.
    renew : callable
        Returns as many ranks on a new cluster, which has the files of the one of the group that is given.
    """

    def __init__(
        self,
        group: WorkerGroup,
        *,
        keeper: SnapshotKeeper,
        writer: CheckpointWriter | None,
        output: Output,
        on_event: Callable[[Message], None],
        on_output: Callable[[int, str, dict[str, Any]], None],
        on_paused: Callable[[], None],
        on_replaced: Callable[[int], None],
        on_back: Callable[[int], None],
        renew: Callable[[WorkerGroup], WorkerGroup],
    ) -> None:
        self._keeper = keeper
        self._writer = writer
        self._output = output
        self._on_event, self._on_output = on_event, on_output
        self._on_back = on_back
        self._execution: Generation | None = None
        self._stall: Watchdog | None = None
        self._balance: Balance | None = None
        self._stopping = False
        self._strategy = find(DEFAULT)
        self._growing = False  # the ranks are to stop, because there is an engine for one more,
        self._grow_after: CompleteSnapshot | None = None  # behind a snapshot that is newer than this
        self._roll_back = RollBack()
        self._pauses = Pauses(group.num_ranks, on_paused=self._note_paused)
        self._on_paused = on_paused
        self._liveness = LivenessCheck()
        self.interrupted = self.pressed = False
        self.restarts = Restarts()
        self._replacement = EngineReplacement(
            group, restarts=self.restarts, renew=renew, on_replaced=on_replaced, tell=self._tell, on_progress=output.progress
        )

    @property
    def _group(self) -> WorkerGroup:
        return self._replacement.group

    @property
    def cluster(self) -> Cluster:
        """The cluster that the task runs on now."""
        return self._replacement.cluster

    def stop(self) -> str:
        """Ask all ranks to stop, and return how they do."""
        self._stopping = True
        if self._execution is not None:
            self._execution.stop()
        return "Stopping after this step." if self._strategy.counts_steps else "Interrupting the cell, which distributes itself."

    def pause(self) -> None:
        """Ask all ranks to wait at the end of a step; a `UsageError` says why they cannot."""
        self._check_orders(Feature.PAUSE, "Pausing")
        number = self._pauses.start()
        if self._execution is not None:
            self._execution.pause(number)

    def resume(self) -> None:
        """End a pause; a `UsageError`: there is none."""
        number = self._pauses.end()
        if self._execution is not None:
            self._execution.resume(number)

    def write_checkpoint(self) -> None:
        """Write a checkpoint to disk as soon as there can be one, and keep it; a `UsageError` says why there cannot."""
        self._check_orders(Feature.SNAPSHOT, "Keeping a checkpoint")
        if self._writer is None:
            raise UsageError("This run has no folder of its own to keep a checkpoint in: the folder of runs cannot be written.")
        self._writer.want(self._keeper)

    def roll_back(self, step: int) -> None:
        """Let the run go on from its checkpoint of `step`; a `UsageError` or `CheckpointError` says why it cannot."""
        self._check_orders(Feature.ROLLBACK, "Going back to a checkpoint")
        if self._writer is None:
            raise UsageError("This run has no folder of its own, and so no checkpoints.")
        self._roll_back.start(step, self._writer, self._keeper, on_read=self._call_back)

    def _call_back(self) -> None:
        if self._execution is not None:
            self._execution.call_back()

    def restart(self, rank: int) -> None:
        """Put another engine in the place of that of `rank`, from which the run goes on; a `UsageError` says why it cannot."""
        self._check_orders(Feature.SNAPSHOT, "Restarting an engine during a run")
        if not 0 <= rank < self._group.num_ranks:
            raise UsageError(f"Rank {rank} takes no part in this run: restart its engine after it.")
        self.restarts.order(rank)

    def _check_orders(self, feature: Feature, what: str) -> None:
        self._strategy.require(feature, what)
        if self._is_stopping:
            raise UsageError("The run is stopping.")

    @property
    def _is_stopping(self) -> bool:
        return self._stopping or (self._execution is not None and self._execution.interrupted)

    def supervise(self, task: Task, *, on_tick: Callable[[], None], on_interrupt: Callable[[], None]) -> list[WorkerResult]:
        """Run `task` on all ranks and return how each ended, in rank order."""

        def tick() -> None:
            on_tick()
            self._look_after(execution)

        ends: list[WorkerResult] = []
        self._strategy = task.strategy
        self._replacement.elastic = task.options.elastic
        self._balance = Balance(task.world_size) if task.options.balance == "auto" and task.world_size > 1 else None
        try:
            following: Task | None = self._met(task)
            while following is not None:
                task = following
                self._execution = execution = self._begun(task)
                with self.cluster.at_work():
                    ends = execution.execute(on_tick=tick, on_interrupt=on_interrupt)
                cause = self._cause(ends)
                if not cause or execution.interrupted or self._stopping or not task.strategy.can_continue:
                    execution.show_held()
                    return ends
                try:
                    following = self._following(cause, task, execution)
                except KeyboardInterrupt:  # somebody does not want to wait for another engine
                    self.interrupted = True
                    stop_there(ends, self._keeper, task)
                    execution.show_held()
                    return ends
            return ends
        finally:
            self._execution = None
            with Interrupts(wake=lambda: None) as late:  # a checkpoint may take its time, and the results come after it
                salvage(ends, self._keeper, task)
                if self._writer is not None:
                    self._writer.finish(self._keeper, self.cluster.blob_dir, through=bool(ends) and not any(end.reason for end in ends))
                    self._tell_all(self._writer.news())
                self._keeper.store.clear()
            self.pressed |= late.count > 0

    def _begun(self, task: Task) -> Generation:
        """Return that of the next generation, with the orders that are in force."""
        self._keeper.start(task.world_size)
        execution = Generation(self._group, task, on_event=self._take, on_output=self._note_output, output=self._output)
        where, through = execution.ask_where, execution.is_through
        self._stall = Watchdog(task.world_size, ask=where, say=self._tell, computed=self._computed, through=through)
        if self._stopping:
            execution.stop()
        if paused := self._pauses.resume(task.world_size):
            execution.pause(paused)
        elif task.pause:  # it has ended meanwhile
            execution.resume(task.pause)
        return execution

    def _cause(self, ends: list[WorkerResult]) -> RestartReason:
        """Return why the run goes on, whose ranks have ended."""
        stopped = any(end.outcome is not None and end.outcome.stopped for end in ends)
        back = self._roll_back.pop() if stopped or any(end.lost for end in ends) else None
        more, self._growing = self._growing and stopped, False
        return RestartReason.of(ends, back, more=more)

    def _following(self, cause: RestartReason, task: Task, execution: Generation) -> Task | None:
        """Make all ready for another generation and return its task, ``None`` where there can be none."""
        self._keeper.commit(ON_ITS_WAY)
        if cause.back is None and not self._keeper.publish():
            self._tell("A part of the last snapshot is lost with its host.")
        if cause.back is not None:
            self._keeper.go_back(cause.back)
            self._keeper.publish()
            self._group.leave()
            if task.file_log is not None:
                go_on_from(task.file_log, cause.back.number, step=cause.back.step, place=cause.back.place)
            self._on_back(cause.back.step)
            self._tell(f"Going back to step {cause.back.step}.")
        newest = self._keeper.newest
        if cause.count_targets:
            task = replace(task, count_targets=True)
            self._on_back(newest.step if newest is not None else 0)
            self._tell(f"A target is ignored for the first time: resuming from {place_of(newest)}, counting them in every batch.")
        if cause.found is not None:
            if newest is not None and newest.step > cause.found.checked:
                newest = None
                self._keeper.begin_anew()
            task = replace(task, whole=(*task.whole, *(finding.kind for finding in cause.found.findings)))
            self._on_back(newest.step if newest is not None else 0)
            self._tell(f"{cause.found.message()} Resuming from {place_of(newest)} with it on the whole batch.")
        if cause.full_batch:
            task = replace(task, full_batch=task.full_batch | {*cause.full_batch})
            self._on_back(newest.step if newest is not None else 0)
            names = ", ".join(name.rpartition(".")[2] for name in cause.full_batch)
            self._tell(
                f"{names} goes by all samples of a batch from here on: resuming from {place_of(newest)}, with global batches for it."
            )
        if cause.lost and not self._replacement.replace(cause.lost, newest):
            return None
        if cause.more and not cause.lost:
            self._replacement.take_back(newest)
        return self._task_of_next(task, execution)

    def _take(self, event: Message) -> None:
        self._keeper.note(event)
        self._pauses.note(event)
        if self._balance is not None:
            self._balance.note(event)
        if self._stall is not None:
            self._stall.note(event)
        if not isinstance(event, SnapshotTaken | ShardLeft | StateSize | Standing | Homeward | Paused):
            self._on_event(event)

    def _note_paused(self) -> None:
        self._keeper.hasten()  # should an engine die meanwhile, the others have not come back a step
        if not self._is_stopping:
            self._on_paused()

    def _note_output(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        self._on_output(rank, kind, content)
        if self._stall is not None:
            self._stall.note(None)

    def _look_after(self, execution: Generation) -> None:
        """Do what is due a few times a second."""
        if unwanted := execution.at_work(self.restarts.ranks):
            self.cluster.send_signal(signal.SIGKILL, unwanted)
        self._liveness.look(execution, self.cluster)
        if self._stall is not None:
            self._stall.note(None) if self._pauses.reached else self._stall.look()
        if self._balance is not None and (speeds := self._balance.due()) is not None:
            execution.share_by(self._balance.number, speeds)
            self._tell_all([describe_shares(speeds)] if self._balance.number == 1 else [])
        keeper = self._keeper
        if (number := keeper.due(idle=self._pauses.reached)) is not None:
            execution.take_snapshot(number)
        self._tell_all(keeper.news())
        if self._writer is not None:
            self._writer.offer(keeper, self.cluster.blob_dir)
            self._tell_all(self._writer.news())
        if self._replacement.may_grow:
            self._grow(execution)
        elif keeper.training_since is not None and time.monotonic() - keeper.training_since > SPARE_AFTER.total_seconds():
            self.cluster.prepare_spare()

    def _grow(self, execution: Generation) -> None:
        """Let the ranks stop behind a snapshot once there is an engine for one more."""
        if not self.cluster.prepare_spare() or self._pauses.reached:
            return
        if not self._growing:
            self._growing, self._grow_after = True, self._keeper.newest
            self._keeper.hasten()
        elif self._keeper.newest is not self._grow_after:
            execution.call_back()

    def _tell_all(self, texts: list[str]) -> None:
        for text in texts:
            self._tell(text)

    def _tell(self, text: str) -> None:
        """Show a line in the cell and in the sidebar."""
        self._output.say(text)
        self._on_event(Notice(rank=0, text=text))

    def _computed(self) -> list[float | None]:
        return [self.cluster.cpu_time(rank) for rank in range(self._group.num_ranks)]

    def _task_of_next(self, task: Task, execution: Generation) -> Task:
        met = self._met(task)
        snapshot = self._keeper.newest
        number, world_size = (snapshot.number, snapshot.world_size) if snapshot is not None else (None, task.world_size)
        if task.file_log is not None:
            cut_back(task.file_log, number)
        resume = Resume(number=number, world_size=world_size, seen=execution.seen)
        return replace(met, resume=resume, pause=self._pauses.resume(met.world_size), generation=task.generation + 1)

    def _met(self, task: Task) -> Task:
        """Return `task` for ranks that meet on the engines that there are."""
        met = self._group.rendezvous(task)
        if (folder := self.cluster.blob_dir) != self._keeper.store.address.parent:
            self._keeper.store = snapshots_on(self.cluster, task.snapshot_folder.name)
        return replace(
            met,
            world_size=self._group.num_ranks,
            blob_folder=folder,
            snapshot_folder=self._keeper.store.address,
            spans_hosts=self.cluster.spans_hosts,
        )
