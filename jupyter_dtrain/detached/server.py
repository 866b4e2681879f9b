"""The host's end of the line: one kernel at a time follows the run, is told what is new, and gives orders."""

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
"""Between two batches of what is new at least."""
RETRY = timedelta(seconds=5)
"""Between two looks at what has no event of its own."""


class Served(Protocol):
    """What views are told of, and orders go to: the session."""

    on_news: Any

    def snapshot(self) -> Snapshot:
        """Return everything that earlier calls of :meth:`drain` have returned."""

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""

    def command(self, command: Command) -> Reply:
        """Carry out `command`, or set about it, and return quickly."""


class Kernel:
    """A kernel that follows the run: process `pid` at the other end of `line`. `begins`: it is the one whose cell it is."""

    def __init__(self, line: PeerConnection, hello: Hello) -> None:
        self.line, self.pid, self.begins = line, hello.pid, hello.begins
        self.position = 0  # up to where it has been told what the cell has shown
        self.is_new = True  # it has no snapshot
        self.has_taken = False


class Server:
    """Serves kernels.

    Parameters
    ----------
    folders : Folders
        Where the socket and the journal are to lie.

    Attributes
    ----------
    journal : Journal
        The output of the cell.
    kernel : Kernel, optional
        The one that follows the run now.
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
        """Tell of `session`, and give it orders."""
        self._session = session
        session.on_news = self._notify
        self._notify()

    def receive(self) -> Any:
        """Return what the kernel whose cell it is has sent next: ``Hello`` or ``CellJob``; ``None`` where it is gone."""
        return self._received.get()

    def give_up(self) -> None:
        """Let :meth:`receive` know that the kernel is gone, whether it has been heard of or not."""
        self._received.put(None)

    def send(self, message: object) -> None:
        """Send a message to the kernel that follows the run, if there is one."""
        kernel = self.kernel
        if kernel is not None:
            kernel.line.send(message)

    def flush(self, kernel: Kernel) -> None:
        """Tell `kernel` all that is new."""
        with self._telling:
            while True:
                calls, kernel.position = read_calls(self.journal.path, kernel.position)
                if not calls:
                    break
                kernel.line.send(Shown(calls))
            session = self._session
            if session is None:
                return
            news = session.drain()  # the snapshot has what was drained
            if kernel.is_new:
                kernel.is_new = False
                news = [session.snapshot()]
            if news:
                kernel.line.send(Updates(news))

    def wait_until_taken(self, kernel: Kernel) -> bool:
        """Wait until `kernel` has the results in its notebook or is gone; return whether it has."""
        with self._condition:
            self._condition.wait_for(lambda: kernel.has_taken or self.kernel is not kernel)
        return kernel.has_taken

    def wait_for_change(self) -> None:
        """Wait until there is another kernel, or some time has passed."""
        kernel = self.kernel
        with self._condition:
            self._condition.wait_for(lambda: self.kernel is not kernel, timeout=RETRY.total_seconds())

    def close(self) -> None:
        """Hang up, and accept no kernel any more."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
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
            # Beside: a kernel that is stopped before its first word holds up no other.
            threading.Thread(target=self._greet, args=(connection,), name="dtrain-kernel", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            line = PeerConnection.answering(connection, self._key)
        except (OSError, EOFError):  # somebody who has changed their mind
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
                with contextlib.suppress(FileNotFoundError):  # the folder is gone: this is the end
                    self.flush(kernel)
            with self._condition:
                self._condition.wait_for(lambda: self._closed, timeout=INTERVAL.total_seconds())
