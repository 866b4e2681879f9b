"""Show a detached run in the kernel's cell and sidebar, and pass on interrupts and commands."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from ..elastic.generation import TICK
from ..elastic.main_thread_output import Output
from ..errors import CellInterrupted, UsageError
from ..protocol import ClusterUpdate, Command, Message, Reply, RunUpdate, Snapshot
from ..system.interpreter import Interrupts
from .connection import Ended, Interrupt, PeerConnection, Ready, Refused, Shown, Taken, Updates
from .journal import replay
from .mirror import RunMirror

DOUBT = timedelta(seconds=0.3)
"""Time to find out whether an interrupt is the start of a shutdown, as Jupyter interrupts a kernel before it shuts it down."""
REPLY_LIMIT = timedelta(seconds=10)


class Views(Protocol):
    """Views of the run besides the cell."""

    def note_cluster(self, update: ClusterUpdate) -> None:
        """Show the state of the engines."""

    def start(self, mirror: RunMirror) -> None:
        """Show the run."""

    def on_news(self) -> None:
        """Fetch new messages."""


class Follower:
    """Follow one run.

    Parameters
    ----------
    line : PeerConnection
    views : Views
    is_leaving : callable
        Returns whether the kernel is about to end.

    Attributes
    ----------
    mirror : RunMirror, optional
        The run, once the host has sent it.
    """

    def __init__(self, line: PeerConnection, views: Views, *, is_leaving: Callable[[], bool]) -> None:
        self._line, self._views, self._is_leaving = line, views, is_leaving
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replies: dict[str, queue.SimpleQueue[Reply]] = {}
        self._telling, self._is_over = threading.Lock(), False
        self.mirror: RunMirror | None = None
        threading.Thread(target=self._receive, name="dtrain-follow", daemon=True).start()

    def wait_ready(self, output: Output) -> Path | Ended:
        """Return the folder for the cell's values once the engines are running, or how the run ended before. Can be interrupted."""
        while True:
            message = self._inbox.get()
            if isinstance(message, Shown):
                replay(message.calls, output)
            elif isinstance(message, Ready):
                return message.blobs
            elif isinstance(message, Ended):
                return message
            elif message is None:
                raise EOFError

    def send(self, message: object) -> None:
        """Send a message to the host."""
        self._line.send(message)

    def follow(self, output: Output) -> Path | None:
        """Show the run in the cell until it has ended; return the folder of its results, ``None`` if its process is gone.

        Raises
        ------
        UsageError
            Another kernel follows it.
        CellInterrupted
            This kernel is about to end, while the run continues.
        """
        with Interrupts(wake=lambda: self._inbox.put(self)) as interrupts:
            passed_on, doubted = 0, 0.0
            while True:
                try:
                    message = self._inbox.get(timeout=TICK.total_seconds())
                except queue.Empty:
                    message = self
                if isinstance(message, Shown):
                    replay(message.calls, output)
                if self.mirror is not None:
                    output.show_run(self.mirror)
                if isinstance(message, Ended):
                    return message.folder
                if isinstance(message, Refused):
                    raise UsageError(_refused(message.pid))
                if message is None:
                    return None
                if self._is_leaving():
                    raise CellInterrupted(
                        ["KeyboardInterrupt: The kernel is shutting down. The run continues: `%distribute attach` follows it."]
                    )
                if interrupts.count > passed_on:
                    doubted = doubted or time.monotonic()
                    if time.monotonic() - doubted > DOUBT.total_seconds():
                        passed_on, doubted = interrupts.count, 0.0
                        self._line.send(Interrupt())

    def command(self, command: Command) -> Reply:
        """Pass a command of the sidebar to the host."""
        replies = self._replies[command.id] = queue.SimpleQueue()
        try:
            self._line.send(command)
            return replies.get(timeout=REPLY_LIMIT.total_seconds())
        except queue.Empty:
            return Reply(id=command.id, ok=False, message="The process that runs the cell does not answer.")
        finally:
            del self._replies[command.id]

    def mark_returned(self) -> None:
        """Tell the host that the notebook has the results, and disconnect."""
        self._line.send(Taken())
        self.close()

    def end_cluster(self) -> None:
        """Tell views that the run's engines have stopped, and ignore what the host still reports about them."""
        with self._telling:
            self._is_over = True
            self._views.note_cluster(ClusterUpdate(phase="stopped"))

    def close(self) -> None:
        """Stop following."""
        self._line.close()

    def _receive(self) -> None:
        while (message := self._line.receive()) is not None:
            if isinstance(message, Updates):
                self._update(message.messages)
            elif isinstance(message, Reply):
                waiting = self._replies.get(message.id)
                if waiting is not None:
                    waiting.put(message)
            else:
                self._inbox.put(message)
        self._inbox.put(None)

    def _update(self, messages: Sequence[Message]) -> None:
        first = messages[0]
        run: Message | None
        if isinstance(first, Snapshot):
            run = first.run
        else:
            run = next((message for message in messages if isinstance(message, RunUpdate)), None)
        if self.mirror is None and isinstance(run, RunUpdate):
            self.mirror = RunMirror(run)
            self._views.start(self.mirror)
        if isinstance(first, Snapshot):
            self._note_cluster(first.cluster)
            if self.mirror is not None:
                self.mirror.start(first)
        else:
            for message in messages:
                if isinstance(message, ClusterUpdate):
                    self._note_cluster(message)
            if self.mirror is not None:
                self.mirror.apply(messages)
        self._views.on_news()

    def _note_cluster(self, update: ClusterUpdate) -> None:
        with self._telling:
            if not self._is_over:
                self._views.note_cluster(update)


def _refused(pid: int) -> str:
    return (
        f"Another kernel (process {pid}) is already attached to this run. When that kernel stops or restarts, "
        "the run continues, and this one can attach to it."
    )
