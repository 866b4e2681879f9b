"""Connections between the notebook's process and a host's agent: two byte streams, and other output.

An agent that the notebook starts itself has standard streams (`ProcessLink`: ``ssh``). One that is started otherwise connects to the
notebook (`DialedLink` in ``dialed_link.py``).
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import BinaryIO, cast


class AgentLink(ABC):
    """A connection to one agent.

    Attributes
    ----------
    requests : BinaryIO
        To the agent.
    answers : BinaryIO
        From the agent. Its end means that the agent or the connection has ended.
    """

    requests: BinaryIO
    answers: BinaryIO

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the connection has ended."""

    @abstractmethod
    def words(self) -> Iterator[str]:
        """Yield lines of other output (of ssh, a shell or Python) until the end."""

    @abstractmethod
    def wait(self, limit: timedelta) -> bool:
        """Wait at most `limit` until the connection has ended; return whether it has."""

    @abstractmethod
    def kill(self) -> None:
        """Close the connection, whatever the agent does, and unblock readers and writers."""


class ProcessLink(AgentLink):
    """The standard streams of a process.

    Parameters
    ----------
    command : sequence of str
    environment : mapping, optional
        By default this process's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        # A session of its own: Jupyter interrupts a kernel's whole process group.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        self.requests, self.answers = cast("BinaryIO", self._process.stdin), cast("BinaryIO", self._process.stdout)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def words(self) -> Iterator[str]:
        """Yield the lines of its standard error."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            yield line.decode(errors="replace").rstrip()

    def wait(self, limit: timedelta) -> bool:
        """Wait for its end."""
        try:
            self._process.wait(limit.total_seconds())
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
