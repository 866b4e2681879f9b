"""Serve a detached run to kernels: one kernel at a time follows the run, gets updates, and sends commands."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
from datetime import timedelta
from typing import Any, Protocol

from ..cluster.folders import Folders
from ..errors import DtrainError
from ..protocol import Command, Message, Reply, Snapshot
from .connection import Hello, Interrupt, PeerConnection, Refused, Shown, Taken, Updates, listen
from .journal import Journal, read_calls

INTERVAL = timedelta(seconds=0.1)
"""Minimum time between two batches of updates."""
RETRY = timedelta(seconds=5)
"""Time between two checks of conditions without an event."""


class Served(Protocol):
    """The session: the source of updates, and the target of commands."""

    on_news: Any

    def snapshot(self) -> Snapshot:
        """Return everything that earlier calls of :meth:`drain` have returned."""

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""

    def command(self, command: Command) -> Reply:
        """Execute `command`, or start to, and return quickly."""


class Kernel:
    """A kernel that follows the run: process `pid` at the other end of `line`. `begins`: it is the kernel that started the run."""

    def __init__(self, line: PeerConnection, hello: Hello) -> None:
        self.line, self.pid, self.begins = line, hello.pid, hello.begins
        self.position = 0  # position in the journal up to which it has the output
        self.is_new = True  # it has no snapshot yet
        self.has_taken = False


class Server:
    """Server for kernels.

    Parameters
    ----------
    folders : Folders
        Folders for the socket and the journal.

    Attributes
    ----------
    journal : Journal
        Output of the cell.
    kernel : Kernel, optional
        The kernel that follows the run now.
    """

    def __init__(self, folders: Folders) -> None:
        self._listener, self._key = listen(folders.sockets)
        self._condition = threading.Condition()
        self._has_news = False
        self._closed = False
        self._session: Served | None = None
        self._telling = threading.Lock()
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.kernel: Kernel | None = None
        self.journal = Journal(folders.private / "shown", on_call=self._notify)
        for target in (self._accept, self._tell_news):
            threading.Thread(target=target, name="dtrain-host", daemon=True).start()

    def serve(self, session: Served) -> None:
        """Serve updates of `session`, and pass commands to it."""
        self._session = session
        session.on_news = self._notify
        self._notify()

    def receive(self) -> Any:
        """Return the next message of the kernel that started the run: ``Hello`` or ``CellJob``; ``None`` if it is gone."""
        return self._received.get()

    def give_up(self) -> None:
        """Let :meth:`receive` report that the kernel is gone, whether it has connected or not."""
        self._received.put(None)

    def send(self, message: object) -> None:
        """Send a message to the kernel that follows the run, if any."""
        kernel = self.kernel
        if kernel is not None:
            kernel.line.send(message)

    def flush(self, kernel: Kernel) -> None:
        """Send `kernel` all new output and updates."""
        with self._telling:
            while True:
                calls, kernel.position = read_calls(self.journal.path, kernel.position)
                if not calls:
                    break
                kernel.line.send(Shown(calls))
            session = self._session
            if session is None:
                return
            news = session.drain()  # a snapshot includes what was drained
            if kernel.is_new:
                kernel.is_new = False
                news = [session.snapshot()]
            if news:
                kernel.line.send(Updates(news))

    def wait_until_taken(self, kernel: Kernel) -> bool:
        """Wait until `kernel` has taken the results or is gone; return whether it has taken them."""
        with self._condition:
            self._condition.wait_for(lambda: kernel.has_taken or self.kernel is not kernel)
        return kernel.has_taken

    def wait_for_change(self) -> None:
        """Wait until the kernel changes, or `RETRY` has passed."""
        kernel = self.kernel
        with self._condition:
            self._condition.wait_for(lambda: self.kernel is not kernel, timeout=RETRY.total_seconds())

    def close(self) -> None:
        """Disconnect, and accept no more kernels."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        if self.kernel is not None:
            self.kernel.line.close()

    def _notify(self) -> None:
        with self._condition:
            self._has_news = True
            self._condition.notify_all()

    # -- threads -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                continue
            # On a thread, so that a kernel that is stopped before its first message does not block others.
            threading.Thread(target=self._greet, args=(connection,), name="dtrain-kernel", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            line = PeerConnection.answering(connection, self._key)
        except (OSError, EOFError):  # the kernel has disconnected
            return
        if line is None:
            return
        hello = line.receive()
        if not isinstance(hello, Hello):
            line.close()
            return
        with self._condition:
            other = self.kernel
            if other is None:
                self.kernel = kernel = Kernel(line, hello)
                self._has_news = True
                self._condition.notify_all()
        if other is not None:
            line.send(Refused(other.pid))
            line.close()
            return
        if kernel.begins:
            self._received.put(hello)
        self._listen(kernel)

    def _listen(self, kernel: Kernel) -> None:
        try:
            self._obey(kernel)
        finally:
            with self._condition:
                self.kernel = None
                self._condition.notify_all()
            if kernel.begins:
                self.give_up()

    def _obey(self, kernel: Kernel) -> None:
        while (message := kernel.line.receive()) is not None:
            match message:
                case Interrupt():
                    os.kill(os.getpid(), signal.SIGINT)  # to the thread that runs the cell, as Jupyter does
                case Command():
                    kernel.line.send(self._answer(message))
                case Taken():
                    kernel.has_taken = True
                    with self._condition:
                        self._condition.notify_all()
                case _:
                    self._received.put(message)

    def _answer(self, command: Command) -> Reply:
        session = self._session
        try:
            if session is None:
                return Reply(id=command.id, ok=False, message="The run is starting: try again in a moment.")
            return session.command(command)
        except DtrainError as error:
            return Reply(id=command.id, ok=False, message=str(error))

    def _tell_news(self) -> None:
        while not self._closed:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or (self.kernel is not None and self._has_news))
                kernel, self._has_news = self.kernel, False
            if kernel is not None:
                with contextlib.suppress(FileNotFoundError):  # the folder is gone, as the host is ending
                    self.flush(kernel)
            with self._condition:
                self._condition.wait_for(lambda: self._closed, timeout=INTERVAL.total_seconds())
