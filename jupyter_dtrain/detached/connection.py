"""The line between a kernel and the process that runs its cell detached: pickled messages over a Unix socket.

The socket lies in a folder of the user's own, and both ends prove that they know the user's secret before either reads a message:
reading a pickle can run any code.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from ..checkpoint.manifest import key_for
from ..cluster.launch_config import own_environment
from ..errors import ClusterError
from ..options import ClusterOptions
from ..protocol import Message

SOCKET = "line"


@dataclass(frozen=True)
class Hello:
    """A kernel, the process `pid`, is there. `begins`: it is the one whose cell it is."""

    pid: int
    begins: bool = False


@dataclass(frozen=True)
class Refused:
    """Another kernel, the process `pid`, follows the run."""

    pid: int


@dataclass(frozen=True)
class Ready:
    """The engines are there, and the cell's values are to lie in `blobs`."""

    blobs: Path


@dataclass(frozen=True)
class Interrupt:
    """■ was pressed."""


@dataclass(frozen=True)
class Updates:
    """What views of the run are told, first a snapshot."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class Shown:
    """What the cell has shown: names of methods of an output, and what they are called with."""

    calls: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Ended:
    """The run has ended, and its results lie in `folder`."""

    folder: Path


@dataclass(frozen=True)
class Taken:
    """The results are in the notebook."""


class Line:
    """One end of it. Any thread may send, one receives."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    @classmethod
    def to(cls, address: Path) -> Line:
        """Connect to the process that listens at `address`; an `OSError` or `EOFError`: it is not there (any more)."""
        return cls(Client(str(address), "AF_UNIX", authkey=secret()))

    @classmethod
    def answering(cls, connection: Connection[Any, Any], key: bytes) -> Line:
        """Take what a listener has accepted, once the other side has shown that it has the same `key`: it may be silent instead.

        Raises
        ------
        OSError, EOFError, AuthenticationError
            It is gone, or it has not.
        """
        try:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def send(self, message: object) -> None:
        """Send a message; nothing happens if the other side is gone."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)  # the connection's own way would have torch share tensors' memory
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        """Return the next message; ``None`` at the end of the line."""
        try:
            data = self._connection.recv_bytes()
        except (OSError, EOFError):
            return None
        return pickle.loads(data)

    def close(self) -> None:
        """Hang up: both ends receive nothing more, also a thread that waits in :meth:`receive`, which closing alone would not reach."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


def listen(folder: Path) -> Listener:
    """Return what accepts connections for :meth:`Line.answering`, with its socket in `folder`."""
    return Listener(str(folder / SOCKET), "AF_UNIX")  # with a key, it would wait for each in turn to show that it has it


def secret() -> bytes:
    """Return what both ends of a line show each other that they have."""
    return key_for("the line to a detached run")


# The start of a host, by the kernel.

MODULE = f"{__package__.partition('.')[0]}.host_app"


def start_host(options: ClusterOptions, runs: Path) -> Line:
    """Return the line to a new process that runs one cell of this kernel; it lives on when the kernel ends.

    Parameters
    ----------
    options : ClusterOptions
        The engines that it starts.
    runs : Path
        The folder of runs.

    Raises
    ------
    ClusterError
        It did not come up.
    """
    said = json.dumps({"num_engines": options.num_engines, "device": options.device, "force": options.force, "runs": str(runs)})
    # A session of its own: Jupyter interrupts and kills a kernel's whole process group. -P: a file beside the notebook that is named
    # like a module is not imported.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, said],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=own_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        if not Path(address).is_socket():
            rest = address + "\n" + process.stdout.read().decode(errors="replace")
            raise ClusterError(f"The process that runs a cell detached has ended while it started:\n{rest.strip()}")
        line = Line.to(Path(address))
        line.send(Hello(os.getpid(), begins=True))
    except BaseException:
        process.kill()  # its guard ends what it has started
        process.wait()
        raise
    threading.Thread(target=_reap, args=(process,), name="dtrain-reap", daemon=True).start()
    return line


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Hold its input open, and ask after it when it has ended."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
