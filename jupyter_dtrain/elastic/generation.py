"""One generation: submit the task to all ranks, send orders while it runs, and collect the outcomes.

The calling thread waits here and shows what the cell prints (``rank_messages.py``).
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from ..cluster import client
from ..engine import worker
from ..engine.side_effects.shown_output import Count
from ..engine.task import Task
from ..engine.telemetry.kernel_link import CONTROL_MESSAGE
from ..protocol import (
    EndPause,
    LeaveGroup,
    Order,
    Pause,
    RankStarted,
    ReturnResults,
    SetShares,
    Stop,
    StopToReturn,
    TakeSnapshot,
    TellStanding,
)
from ..protocol.bus import Bus
from ..system.interpreter import Interrupts
from .escalation import ASKED, AT_ONCE, FAILED, Means, Patience
from .main_thread_output import Output
from .rank_messages import RankMessages
from .run_events import Interrupted
from .worker_group import RankEnds, WorkerGroup, WorkerResult

REST = timedelta(seconds=3)  # for output that is still in flight when the results have arrived
TICK = timedelta(milliseconds=100)  # between checks of what no event reports
ALONE = (
    "The controller of the engines has ended. The cell continues on the engines, and its results are returned when it ends; "
    "its output is no longer shown."
)


class Generation:
    """A task on every rank of a group.

    Parameters
    ----------
    group : WorkerGroup
    task : Task
        Each rank gets it with its own `rank`.
    events : Bus
        Gets every engine event, on the client's IO thread, and `RankShown` and `Interrupted`.
    output : Output

    Attributes
    ----------
    interrupted : bool
        There was a keyboard interrupt.
    """

    def __init__(self, group: WorkerGroup, task: Task, *, events: Bus, output: Output) -> None:
        self._group, self._task, self._events = group, task, events
        self._messages = RankMessages(task, events, output)
        self._tasks: list[client.Task] = []
        self._ends = RankEnds(task, group.cluster, self._tasks)
        self._standing: dict[str, Order] = {}  # orders that are repeated to a rank that starts later
        events.subscribe(RankStarted, lambda event: self._order_again(event.rank))
        self.interrupted = False

    def execute(self, *, on_tick: Callable[[], None]) -> list[WorkerResult]:
        """Run the task on all ranks and return how each rank ended, in rank order.

        Parameters
        ----------
        on_tick : callable
            Called a few times a second while the cell runs.
        """
        with Interrupts(wake=self._messages.inbox.wake) as interrupts:
            self._submit()
            self._wait(interrupts, on_tick)
            self._show_rest()
            self.interrupted |= interrupts.count > 0
        ends = [self._ends.of(rank) for rank in self._ranks]
        if any(end.reason or end.outcome is None or end.outcome.failure is not None for end in ends):
            self._group.leave()
        if ends[0].killed and ends[0].outcome is None:
            # Rank 0 could not even pack its results on another thread. Another rank's results are equal.
            saved = next((end.outcome for end in ends if end.outcome is not None and end.outcome.parcel is not None), None)
            ends[0].outcome = replace(saved, rank=0, failure=None) if saved is not None else None
        return ends

    def _submit(self) -> None:
        encoded = pickle.dumps(self._task, protocol=pickle.HIGHEST_PROTOCOL)
        for rank, engine_id in enumerate(self._group.engine_ids):
            task = self._group.channel.call(engine_id, worker.run, encoded, rank, on_message=self._messages.listener(rank))
            task.on_done(self._messages.inbox.wake)
            self._tasks.append(task)

    def _wait(self, interrupts: Interrupts, on_tick: Callable[[], None]) -> None:
        patience = Patience()
        handled, told, strategy = 0, False, self._task.strategy
        alone = not self._group.cluster.controller_alive
        over = self._over()
        while len(over) < len(self._tasks):
            if strategy.outlives_controller and not alone and not self._group.cluster.controller_alive:
                alone = True
                self._messages.say(ALONE)
            self._messages.inbox.work(TICK)
            on_tick()
            over = self._over()
            if not patience.begun and self._someone_left(over):
                patience.start(FAILED)
            if self._task.spans_hosts and not told and any(self._ends.of(rank).lost for rank in over):
                told = True
                self._tell_all(LeaveGroup())  # a silent host closes no connection
            count = interrupts.count
            if count > handled == 0:
                self.interrupted = True
                self.stop()
                self._events.publish(Interrupted())
                patience.start(ASKED if strategy.counts_steps else AT_ONCE)
            elif (means := patience.due(pressed=count > handled)) is not None:
                self._urge(means)
            elif not strategy.counts_steps and "stop" in self._standing and not patience.begun:
                patience.start(AT_ONCE)
            handled = count  # several interrupts between two checks count as one

    def stop(self) -> None:
        """Ask all ranks to stop at the end of a step; a cell that counts no steps is interrupted. Any thread may call this."""
        self._standing["stop"] = Stop()
        self._tell_all(self._standing["stop"])

    def call_back(self) -> None:
        """Ask all ranks to stop because the run resumes from a checkpoint. Any thread may call this."""
        self._tell_all(self._standing.setdefault("stop", StopToReturn()))

    def pause(self, number: int) -> None:
        """Ask all ranks to wait at the end of a step until :meth:`resume`. Any thread may call both. `number` counts a run's pauses."""
        self._standing["pause"] = Pause(number=number)
        self._tell_all(self._standing["pause"])

    def resume(self, number: int) -> None:
        """End a pause."""
        self._standing["pause"] = EndPause(number=number)
        self._tell_all(self._standing["pause"])

    def _tell_all(self, order: Order) -> None:
        self._tell(self._group.engine_ids, order)

    def _tell(self, engine_ids: Sequence[int], order: Order) -> None:
        self._group.channel.command(engine_ids, CONTROL_MESSAGE, order.to_json())

    @property
    def _ranks(self) -> range:
        return range(len(self._tasks))

    def close_output(self) -> tuple[Count, ...]:
        """Return how much output of each rank has been shown. The next generation shows the rest, as what comes later is not shown."""
        return self._messages.close()

    def show_held(self) -> None:
        """Show the output that ranks have held back, once the run has ended."""
        self._messages.show_held(map(self._ends.of, self._ranks))

    def _show_rest(self) -> None:
        for task in self._tasks:  # also ranks whose output is not shown, as their events use the same channel
            task.on_output_done(self._messages.inbox.wake)
        self._messages.show_rest(
            lambda: any(not task.output_done and self._is_alive(rank) for rank, task in enumerate(self._tasks)), REST, TICK
        )

    def silent_ranks(self, limit: timedelta) -> list[int]:
        """Return the ranks at work from which nothing was heard for `limit`, though engines report device use all the time.

        A rank that has never reported may wait for another to begin. It counts as silent only if its process is stopped.
        """
        before, cluster = time.monotonic() - limit.total_seconds(), self._group.cluster
        silent = [rank for rank, heard in self._messages.heard.items() if heard < before]
        if not cluster.controller_alive:  # without a controller no rank can be heard
            silent = []
        silent += [rank for rank in self._ranks if rank not in {*silent, *self._messages.heard} and cluster.is_stopped(rank)]
        return self.at_work(silent)

    def end_stuck(self, ranks: Sequence[int]) -> None:
        """Kill the engines of `ranks`, which neither report nor compute, and record that as the reason for their loss."""
        self._ends.stuck.update(ranks)
        self._group.cluster.send_signal(signal.SIGKILL, ranks)

    def at_work(self, ranks: Iterable[int]) -> list[int]:
        """Return those of `ranks` that take part in this generation and have not ended."""
        return [rank for rank in ranks if rank < len(self._tasks) and not self._ends.is_over(rank)]

    def is_through(self, rank: int) -> bool:
        """Return whether a rank has ended."""
        return self._ends.is_over(rank)

    def ask_where(self) -> None:
        """Ask all ranks which line of the user's code they are at."""
        self._tell_all(TellStanding())

    def take_snapshot(self, number: int) -> None:
        """Ask all ranks for a snapshot at the next top of a loop."""
        self._tell_all(TakeSnapshot(number=number))

    def share_by(self, number: int, speeds: Sequence[float]) -> None:
        """Ask all ranks to shard batches in proportion to `speeds`. `number` counts these orders."""
        self._tell_all(SetShares(number=number, speeds=list(speeds)))

    def _order_again(self, rank: int) -> None:
        """Repeat the standing orders to a rank that has just started."""
        for order in list(self._standing.values()):
            self._tell([self._group.engine_ids[rank]], order)

    # -- ending a generation -----------------------------------------------------------------------------------------

    def _over(self) -> list[int]:
        """Return the ranks that have ended. Once a tick: of hundreds it takes a hundredth of the kernel's time."""
        return [rank for rank in self._ranks if self._ends.is_over(rank)]

    def _someone_left(self, over: Sequence[int]) -> bool:
        """Return whether one of those that have ended has done so in a way that may leave others waiting for it."""
        ends = map(self._ends.of, over)
        return any(end.outcome is None or end.outcome.failure is not None for end in ends)

    def _is_alive(self, rank: int) -> bool:
        return rank not in self._group.cluster.dead_ranks()

    def _urge(self, means: Means) -> None:
        """Make the ranks that are still at work leave."""
        busy = self.at_work(self._ranks)
        if means in (Means.END, Means.END_ALL):
            if means is Means.END:
                busy = [
                    rank for rank in busy if self._messages.homeward.get(rank, 0.0) < time.monotonic() or self._ends.file(rank).exists()
                ]
            self._ends.killed.update(busy)
            self._group.cluster.send_signal(signal.SIGKILL, busy)
            return
        self._ends.interrupted.update(busy)
        self._group.cluster.send_signal(signal.SIGINT, busy)
        if means is Means.RESCUE and 0 in busy:
            self._tell([self._group.engine_ids[rank] for rank in busy], ReturnResults())
