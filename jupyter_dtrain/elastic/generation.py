"""One cell on all ranks: tasks go out, output and events come in while they run, outcomes at the end.

The calling thread waits here and shows what the cell prints, because output belongs to the cell only when it is
printed by the thread that runs it. Events go to the recorder straight from the client's IO thread.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from ..cluster import client
from ..engine import worker
from ..engine.side_effects.shown_output import Count
from ..engine.task import Task
from ..engine.telemetry.kernel_link import CONTROL_MESSAGE
from ..errors import ProtocolError
from ..protocol import (
    EndPause,
    Homeward,
    LeaveGroup,
    Notice,
    Order,
    Pause,
    RankStarted,
    ReturnResults,
    SetShares,
    Stop,
    StopToReturn,
    TakeSnapshot,
    TellStanding,
    parse,
)
from ..protocol.bus import Bus
from ..runs.record import ViewedRun
from ..system.interpreter import Interrupts
from .escalation import ASKED, AT_ONCE, FAILED, Means, Patience
from .main_thread_output import Inbox, RankLines
from .run_events import Interrupted, RankShown
from .worker_group import RankEnds, WorkerGroup, WorkerResult

REST = timedelta(seconds=3)  # for output that is still on its way when the results are there
TICK = timedelta(milliseconds=100)  # between looks at what has no event of its own
ALONE = (
    "The controller of the engines has ended. The cell continues on the engines, and its results are returned when it ends; "
    "its output is no longer shown."
)


class Output(Protocol):
    """Where the cell's output goes."""

    def stream(self, name: str, text: str) -> None:
        """Show `text` printed to ``stdout`` or ``stderr``."""

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Show a rich display, or show it in the place of an earlier one: the content of a ``display_data`` message."""

    def clear(self, *, wait: bool) -> None:
        """Clear what was shown."""

    def progress(self, text: str) -> None:
        """Show how far something is, in a line that is written over."""

    def say(self, text: str) -> None:
        """Show a line of this project's own."""

    def show_run(self, run: ViewedRun) -> None:
        """Show how the run is doing: called when it begins, some ten times a second, and when it has ended."""


class Generation:
    """A task on every rank of a group.

    Parameters
    ----------
    group : WorkerGroup
    task : Task
        Its `rank` is set for each rank in turn.
    events : Bus
        Gets each engine event, on the client's IO thread, and the run's own: `RankShown`, also of what :meth:`show_held` shows, and
        `Interrupted`.
    output : Output

    Attributes
    ----------
    interrupted : bool
        There was a keyboard interrupt.
    """

    def __init__(
        self,
        group: WorkerGroup,
        task: Task,
        *,
        events: Bus,
        output: Output,
    ) -> None:
        self._group = group
        self._task = task
        self._events = events
        self._output = output
        self._seen = dict(enumerate(task.resume.seen)) if task.resume is not None else {}
        self._lines = RankLines(output.stream) if task.options.output == "all" else None
        self._inbox = Inbox()
        self._tasks: list[client.Task] = []
        self._ends = RankEnds(task, group.cluster, self._tasks)
        self._heard: dict[int, float] = {}
        self._homeward: dict[int, float] = {}  # until when ranks are left in peace that take home what they have
        self._standing: dict[str, Order] = {}  # orders that a rank gets too which begins later
        self.interrupted = False

    def execute(self, *, on_tick: Callable[[], None]) -> list[WorkerResult]:
        """Run the task on all ranks and return how each ended, in rank order.

        Parameters
        ----------
        on_tick : callable
            Called a few times a second while the cell runs.
        """
        with Interrupts(wake=self._inbox.wake) as interrupts:
            self._submit()
            self._wait(interrupts, on_tick)
            self._show_rest()
            self.interrupted |= interrupts.count > 0
        ends = [self._ends.of(rank) for rank in self._ranks]
        if any(end.reason or end.outcome is None or end.outcome.failure is not None for end in ends):
            self._group.leave()
        if ends[0].killed and ends[0].outcome is None:
            # It did not even let another thread run. What a rank beside it has is the same.
            saved = next((end.outcome for end in ends if end.outcome is not None and end.outcome.parcel is not None), None)
            ends[0].outcome = replace(saved, rank=0, failure=None) if saved is not None else None
        return ends

    def show_held(self) -> None:
        """Show what the ranks have held back; the run has ended."""
        for end in map(self._ends.of, self._ranks):
            for kind, shown in end.outcome.held if end.outcome is not None else ():
                message = ("stream", {"name": kind, "text": shown}) if kind == "stdout" else ("display_data", shown)
                self._events.publish(RankShown(rank=end.rank, kind=message[0], content=message[1]))
                if kind == "stdout" and self._lines is not None:
                    self._lines.stream(end.rank, kind, shown)
                elif end.rank == 0 and kind == "stdout":
                    self._output.stream(kind, shown)
                elif end.rank == 0:
                    self._output.display(shown, update=shown["update"])
        if self._lines is not None:
            self._lines.flush()

    def _submit(self) -> None:
        encoded = pickle.dumps(self._task, protocol=pickle.HIGHEST_PROTOCOL)
        for rank, engine_id in enumerate(self._group.engine_ids):
            task = self._group.channel.call(engine_id, worker.run, encoded, rank, on_message=self._listener(rank))
            task.on_done(self._inbox.wake)
            self._tasks.append(task)

    def _wait(self, interrupts: Interrupts, on_tick: Callable[[], None]) -> None:
        patience = Patience()
        handled, strategy = 0, self._task.strategy
        alone = not self._group.cluster.controller_alive
        while not all(map(self._ends.is_over, self._ranks)):
            if strategy.outlives_controller and not alone and not self._group.cluster.controller_alive:
                alone = True
                self._say(ALONE)
            self._inbox.work(TICK)
            on_tick()
            if not patience.begun and self._someone_left():
                patience.start(FAILED)
                if any(map(self._group.cluster.why_lost, self._ranks)):  # whose silence frees nobody who waits for them
                    self._tell_all(LeaveGroup())
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
            handled = count  # those of an impatient moment are one

    def stop(self) -> None:
        """Ask all ranks to stop at the end of a step; a cell that counts none is interrupted. Any thread may call this."""
        self._standing["stop"] = Stop()
        self._tell_all(self._standing["stop"])

    def call_back(self) -> None:
        """Ask the same of them, where the run is to go on from a checkpoint. Any thread may call this."""
        self._tell_all(self._standing.setdefault("stop", StopToReturn()))

    def pause(self, number: int) -> None:
        """Ask all ranks to wait at the end of a step, until :meth:`resume`. Any thread may call these. `number` counts a run's pauses."""
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

    @property
    def seen(self) -> tuple[Count, ...]:
        """What has been shown of each rank."""
        return tuple(self._seen.get(rank, Count()) for rank in range(self._task.world_size))

    def silent_ranks(self, limit: timedelta) -> list[int]:
        """Return the ranks that are at work and have told nothing for `limit`, though they tell of their devices all the time.

        Those that have told nothing yet may wait for another to begin: only a process that is stopped is silent then.
        """
        before, cluster = time.monotonic() - limit.total_seconds(), self._group.cluster
        silent = [rank for rank, heard in self._heard.items() if heard < before]
        if not cluster.controller_alive:  # they are not heard
            silent = []
        silent += [rank for rank in self._ranks if rank not in {*silent, *self._heard} and cluster.is_stopped(rank)]
        return self.at_work(silent)

    def end_stuck(self, ranks: Sequence[int]) -> None:
        """End the engines of `ranks`, which are silent and compute nothing: they are lost for that reason."""
        self._ends.stuck.update(ranks)
        self._group.cluster.send_signal(signal.SIGKILL, ranks)

    def at_work(self, ranks: Iterable[int]) -> list[int]:
        """Return those of `ranks` that have not come to their end; not one that takes no part any more."""
        return [rank for rank in ranks if rank < len(self._tasks) and not self._ends.is_over(rank)]

    def is_through(self, rank: int) -> bool:
        """Return whether a rank has come to its end."""
        return self._ends.is_over(rank)

    def ask_where(self) -> None:
        """Ask all ranks which of the user's lines they are at."""
        self._tell_all(TellStanding())

    def take_snapshot(self, number: int) -> None:
        """Ask all ranks for a snapshot at the top of a loop, as soon as possible."""
        self._tell_all(TakeSnapshot(number=number))

    def share_by(self, number: int, speeds: Sequence[float]) -> None:
        """Ask all ranks to share out batches in proportion to `speeds`. `number` counts such orders."""
        self._tell_all(SetShares(number=number, speeds=list(speeds)))

    # -- what comes in ----------------------------------------------------------------------------------------------

    def _listener(self, rank: int) -> Callable[[str, dict[str, Any]], None]:
        def listen(kind: str, content: dict[str, Any]) -> None:
            self._heard[rank] = time.monotonic()
            self._count(rank, kind, content)
            if kind == "data_message":
                self._take_events(content)
            elif kind == "stream" and self._lines is not None:
                lines = self._lines
                self._inbox.leave(lambda: lines.stream(rank, content["name"], content["text"]))
            elif rank == 0 and kind == "stream":
                self._inbox.leave(lambda: self._output.stream(content["name"], content["text"]))
            elif rank == 0 and kind in ("display_data", "update_display_data"):
                self._inbox.leave(lambda: self._output.display(content, update=kind != "display_data"))
            elif rank == 0 and kind == "clear_output":
                self._inbox.leave(lambda: self._output.clear(wait=bool(content.get("wait"))))

        return listen

    def _count(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        count = self._seen.setdefault(rank, Count())
        if kind != "data_message":
            self._events.publish(RankShown(rank=rank, kind=kind, content=content))
        if kind == "stream" and content["name"] == "stdout":
            self._seen[rank] = replace(count, lines=count.lines + content["text"].count("\n"))
        elif kind == "display_data":
            self._seen[rank] = replace(count, displays=count.displays + 1)

    def _take_events(self, batches: dict[str, Any]) -> None:
        for messages in batches.values():
            for message in messages:
                try:
                    event = parse(message)
                    if isinstance(event, RankStarted):
                        self._order_again(event.rank)
                    elif isinstance(event, Homeward):
                        self._homeward[event.rank] = time.monotonic() + event.seconds
                    self._events.publish(event)
                except ProtocolError as error:
                    self._say(str(error))
                else:
                    if isinstance(event, Notice):
                        self._say(event.text)

    def _order_again(self, rank: int) -> None:
        """Repeat to a rank that listens now what may have been said before."""
        for order in list(self._standing.values()):
            self._tell([self._group.engine_ids[rank]], order)

    def _say(self, text: str) -> None:
        self._inbox.leave(lambda: self._output.say(text))

    def _show_rest(self) -> None:
        """Show output that is still on its way: it takes another road than the results."""
        deadline = time.monotonic() + REST.total_seconds()
        for task in self._tasks:  # also of those whose output is not shown: their events come the same way
            task.on_output_done(self._inbox.wake)
        while time.monotonic() < deadline and any(not task.output_done and self._is_alive(rank) for rank, task in enumerate(self._tasks)):
            self._inbox.work(TICK)
        self._inbox.work(timedelta(0))
        if self._lines is not None:
            self._lines.flush()

    # -- what ends it ------------------------------------------------------------------------------------------------

    def _someone_left(self) -> bool:
        """Return whether a rank has ended in a way that may leave others waiting for it."""
        ends = [self._ends.of(rank) for rank in self._ranks if self._ends.is_over(rank)]
        return any(end.outcome is None or end.outcome.failure is not None for end in ends)

    def _is_alive(self, rank: int) -> bool:
        return rank not in self._group.cluster.dead_ranks()

    def _urge(self, means: Means) -> None:
        """Let the ranks that are still at work leave."""
        busy = self.at_work(self._ranks)
        if means in (Means.END, Means.END_ALL):
            if means is Means.END:
                busy = [rank for rank in busy if self._homeward.get(rank, 0.0) < time.monotonic() or self._ends.file(rank).exists()]
            self._ends.killed.update(busy)
            self._group.cluster.send_signal(signal.SIGKILL, busy)
            return
        self._ends.interrupted.update(busy)
        self._group.cluster.send_signal(signal.SIGINT, busy)
        if means is Means.RESCUE and 0 in busy:
            self._tell([self._group.engine_ids[rank] for rank in busy], ReturnResults())
