"""Messages that ranks send while they run: output goes to the thread that runs the cell, events to their subscribers.

Jupyter assigns output to the cell only if the thread that runs the cell prints it. Events are published on the client's IO thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..engine.side_effects.shown_output import Count
from ..engine.task import Task
from ..errors import ProtocolError
from ..protocol import Homeward, Notice, parse
from ..protocol.bus import Bus
from .main_thread_output import Inbox, Output, RankLines
from .run_events import RankShown
from .worker_group import WorkerResult


class RankMessages:
    """Receive what the ranks of a generation send.

    Parameters
    ----------
    task : Task
    events : Bus
        Gets each engine event, and a `RankShown` for all output of a rank.
    output : Output

    Attributes
    ----------
    inbox : Inbox
        Work for the thread that runs the cell.
    heard : dict of int to float
        Rank → time of its last message, by the monotonic clock.
    homeward : dict of int to float
        Rank → time until which it may return its results undisturbed, by the same clock.
    """

    def __init__(self, task: Task, events: Bus, output: Output) -> None:
        self._world_size, self._events, self._output = task.world_size, events, output
        self._seen = dict(enumerate(task.resume.seen)) if task.resume is not None else {}
        self._lines = RankLines(output.stream) if task.options.output == "all" else None
        self._is_over, self._lock = False, threading.Lock()
        self.inbox = Inbox()
        self.heard: dict[int, float] = {}
        self.homeward: dict[int, float] = {}
        events.subscribe(Homeward, self._leave_in_peace)
        events.subscribe(Notice, lambda event: self.say(event.text))

    def close(self) -> tuple[Count, ...]:
        """Show what has arrived since :meth:`show_rest`, and return how much output of each rank has been shown.

        What comes later, from an engine that was taken for lost, is neither shown nor counted: the next generation shows it.
        """
        with self._lock:
            self._is_over = True
        self.inbox.work(timedelta(0))
        if self._lines is not None:
            self._lines.flush()
        return tuple(self._seen.get(rank, Count()) for rank in range(self._world_size))

    def listener(self, rank: int) -> Callable[[str, dict[str, Any]], None]:
        """Return a callback for a rank's messages: (kind, content). It must be called on the client's IO thread."""

        def listen(kind: str, content: dict[str, Any]) -> None:
            self.heard[rank] = time.monotonic()
            if kind == "data_message":
                self._take_events(content)
                return
            with self._lock:
                if self._is_over:
                    return
                self._count(rank, kind, content)
                self._leave(rank, kind, content)
            self._events.publish(RankShown(rank=rank, kind=kind, content=content))

        return listen

    def _leave(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Leave output to the thread that runs the cell, if it is shown."""
        if kind == "stream" and self._lines is not None:
            lines = self._lines
            self.inbox.leave(lambda: lines.stream(rank, content["name"], content["text"]))
        elif rank == 0 and kind == "stream":
            self.inbox.leave(lambda: self._output.stream(content["name"], content["text"]))
        elif rank == 0 and kind in ("display_data", "update_display_data"):
            self.inbox.leave(lambda: self._output.display(content, update=kind != "display_data"))
        elif rank == 0 and kind == "clear_output":
            self.inbox.leave(lambda: self._output.clear(wait=bool(content.get("wait"))))

    def _count(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        count = self._seen.setdefault(rank, Count())
        if kind == "stream" and content["name"] == "stdout":
            self._seen[rank] = replace(count, lines=count.lines + content["text"].count("\n"))
        elif kind == "display_data":
            self._seen[rank] = replace(count, displays=count.displays + 1)

    def _take_events(self, batches: dict[str, Any]) -> None:
        for messages in batches.values():
            for message in messages:
                try:
                    self._events.publish(parse(message))
                except ProtocolError as error:
                    self.say(str(error))

    def _leave_in_peace(self, event: Homeward) -> None:
        self.homeward[event.rank] = time.monotonic() + event.seconds

    def say(self, text: str) -> None:
        """Show a message of this project's own. Any thread may call this."""
        self.inbox.leave(lambda: self._output.say(text))

    def show_rest(self, is_awaited: Callable[[], bool], limit: timedelta, tick: timedelta) -> None:
        """Show output in flight, while it is awaited and at most for `limit`: results use another channel and may arrive before it."""
        deadline = time.monotonic() + limit.total_seconds()
        while time.monotonic() < deadline and is_awaited():
            self.inbox.work(tick)
        self.inbox.work(timedelta(0))
        if self._lines is not None:
            self._lines.flush()

    def show_held(self, ends: Iterable[WorkerResult]) -> None:
        """Show the output that ranks have held back, once the run has ended."""
        for end in ends:
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
