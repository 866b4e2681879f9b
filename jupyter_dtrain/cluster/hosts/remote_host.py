"""The notebook's side of one host: the connection to its agent, whose end or silence means that the host is lost."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...errors import ClusterError
from .agent_link import AgentLink
from .frames import BEAT, CHUNK, IDLE, LEASE, MAGIC, Header, read_frame, write_frame
from .login_failures import meaning_of

ANSWER, LOGIN, LEAVE = timedelta(seconds=30), timedelta(seconds=20), timedelta(seconds=5)
"""Time for an agent's answer, for a login with the start of Python, and for an agent to end its processes."""


class RemoteHost:
    """The agent at the other end of `link`.

    Parameters
    ----------
    name : str
        The user's name of the host.
    link : AgentLink
    python : str
        Its Python, for messages.
    explain : callable, optional
        Takes the host and returns why its agent has ended, if its starter knows; else an empty text.

    Attributes
    ----------
    on_event : callable
        Takes the agent's events, on a thread of this host.
    on_lost : callable
        Called once, on any thread, when the host is lost.
    facts : dict
        What the agent has reported of the host.
    lost : str
        Why the host cannot be used any more; empty while it can.
    is_leaving : bool
        Its scheduler takes it away, and it waits for the notebook to let it go.
    bytes_sent, bytes_received : int
    """

    on_event: Callable[[RemoteHost, Header], None] = staticmethod(lambda _host, _event: None)
    on_lost: Callable[[RemoteHost], None] = staticmethod(lambda _host: None)

    def __init__(self, name: str, link: AgentLink, *, python: str, explain: Callable[[RemoteHost], str] = lambda _: "") -> None:
        self._link, self._explain = link, explain
        self.name, self.facts, self.lost = name, Header(), ""
        self.bytes_sent, self.bytes_received, self.is_leaving = 0, 0, False
        self.cpu: dict[str, float | None] = {}
        self.stopped: frozenset[str] = frozenset()
        self._python = python
        self._numbers = itertools.count()
        self._answers: dict[int, Header] = {}
        self._parts: dict[int, Any] = {}
        self._changed, self._writing, self._losing = threading.Condition(), threading.Lock(), threading.Lock()
        self._stopping = False
        self._heard, self._lease = time.monotonic(), IDLE
        self._words: deque[str] = deque(maxlen=20)
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in (self._hear_words, self._read, self._beat, self._watch)]
        for thread in self._threads:
            thread.start()

    @property
    def is_up(self) -> bool:
        """Whether the agent has come up."""
        return bool(self.facts)

    def wait_up(self, limit: timedelta = LOGIN, *, waited: timedelta = timedelta()) -> None:
        """Wait until the agent is up; raise a `ClusterError` if it does not come. `waited`: time waited before, for the message."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_up or self.lost, limit.total_seconds())
        if not self.is_up:
            self.lose(self._why() if self.lost else f"its agent has not come up within {(limit + waited).total_seconds():g} s")
            raise ClusterError(f"{self.name}: {self.lost}.")

    def give_up(self) -> None:
        """Stop waiting for an agent."""
        self._link.kill()

    def ask(self, action: str, *, limit: timedelta = ANSWER, **content: Any) -> Header:
        """Send a request and return the agent's answer; raise a `ClusterError` if it fails or the host is lost."""
        number = next(self._numbers)
        self.tell(action, number=number, **content)
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self.lost, limit.total_seconds())
            answer = self._answers.pop(number, None)
        self._check()
        if answer is None:
            raise ClusterError(f"{self.name} has not answered within {limit.total_seconds():g} s.")
        if "error" in answer:
            raise ClusterError(f"{self.name}: {answer['error']}")
        return answer

    def tell(self, action: str, payload: bytes | memoryview = b"", **content: Any) -> None:
        """Send a request without an answer. Dropped if the connection has ended."""
        with self._writing, contextlib.suppress(OSError, ValueError):
            write_frame(self._link.requests, {"do": action, **content}, payload)

    def _check(self) -> None:
        if self.lost:
            raise ClusterError(f"{self.name}: {self.lost}.")

    # -- files -------------------------------------------------------------------------------------------------------

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return which of these files the host does not have."""
        found: list[str] = self.ask("missing", names=list(names))["missing"] if names else []
        return found

    def put(self, name: str, data: memoryview, on_sent: Callable[[int], None] = lambda _: None) -> None:
        """Send a file. Returns when all of it is in flight."""
        data = data.cast("B") if data.nbytes else memoryview(b"")
        for offset in range(0, max(1, data.nbytes), CHUNK):
            part = data[offset : offset + CHUNK]
            self.tell("put", part, name=name, offset=offset, last=offset + CHUNK >= data.nbytes)
            self._check()
            self.bytes_sent += part.nbytes
            on_sent(part.nbytes)

    def get(self, name: str, path: Path) -> None:
        """Write a file of the host to `path`; raise a `ClusterError` if it does not exist or the host is lost."""
        transfer = next(self._numbers)
        aside = path.with_name(f".from-{transfer}-{path.name}")
        with aside.open("wb") as file:
            self._parts[transfer] = file
            self.tell("get", name=name, transfer=transfer)
            with self._changed:  # no time limit, as a silent agent counts as lost
                self._changed.wait_for(lambda: transfer in self._answers or self.lost)
                answer = self._answers.pop(transfer, None)
            del self._parts[transfer]
        if answer is None or "error" in answer:
            aside.unlink()
            self._check()
            raise ClusterError(f"{self.name} has no {name}: {(answer or {}).get('error', 'it was not sent')}.")
        aside.rename(path)

    # -- lifetime --------------------------------------------------------------------------------------------------------

    def begin_end(self) -> None:
        """Ask the agent to end all processes there."""
        self._stopping = True
        self.tell("stop")
        with contextlib.suppress(OSError, ValueError):
            self._link.requests.close()

    def let_go(self) -> None:
        """Let a leaving host end its processes; it is lost then."""
        self.tell("stop")

    def end(self, limit: timedelta = LEAVE) -> None:
        """Wait until the agent has ended; one that cannot be reached ends by itself."""
        if not self._link.wait(limit):
            self._link.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)

    def lose(self, why: str) -> None:
        """Treat the host as lost, and close the connection, with which its agent ends."""
        with self._losing:
            if self.lost or self._stopping:
                return
            with self._changed:
                self.lost = why
                self._changed.notify_all()
        self._link.kill()  # unblocks writers
        if self.is_up:
            self.on_lost(self)

    def _beat(self) -> None:
        while not self.lost and not self._stopping and not self._link.has_ended:
            if self.is_up:
                self.tell("beat")
            time.sleep(BEAT)

    def work(self, *, is_on: bool) -> None:
        """Note whether a cell runs on its engines: if so, the host counts as lost after a shorter silence."""
        self._lease = LEASE if is_on else IDLE
        self.tell("work", is_on=is_on)

    def _watch(self) -> None:
        while not self.lost and not self._stopping:
            if self.is_up and time.monotonic() - self._heard > self._lease:
                self.lose(f"it has been silent for {self._lease:g} s: it is down, or cannot be reached any more")
            looked = time.monotonic()
            time.sleep(BEAT / 2)
            held = time.monotonic() - looked - BEAT / 2
            if held > BEAT:  # this process was suspended, and has not read the host's messages yet
                self._heard += held

    def _hear_words(self) -> None:
        self._words.extend(self._link.words())

    def _read(self) -> None:
        out: Any = self._link.answers
        try:
            while (line := out.readline()) != MAGIC:
                if not line:
                    break
                self._words.append(line.decode(errors="replace").rstrip())
            else:
                while (frame := read_frame(out)) is not None:
                    self._heard = time.monotonic()
                    self._take(*frame)
        except (ClusterError, OSError, ValueError) as error:
            self._words.append(str(error))
        self._link.wait(timedelta(seconds=2))
        self._threads[0].join(timeout=1.0)
        self.lose(self._why())

    def _take(self, header: Header, payload: bytes) -> None:
        event = header.pop("event")
        if event == "part":
            self.bytes_received += len(payload)
            if (file := self._parts.get(header["transfer"])) is not None:
                file.write(payload)
        elif event in ("answer", "whole"):
            with self._changed:
                self._answers[header.pop("number") if event == "answer" else header.pop("transfer")] = header
                self._changed.notify_all()
        elif event == "hello":
            with self._changed:
                self.facts = {**header, "heard": time.time()}
                self._changed.notify_all()
        elif event == "terminated":
            self.is_leaving = True
        elif event == "beat":
            self.cpu, self.stopped = header["cpu"], frozenset(header["stopped"])
        else:
            self.on_event(self, {"event": event, **header})

    def _why(self) -> str:
        """Return why the agent has ended, from its last output."""
        words = [word for word in self._words if word]
        if not self.is_up and (meaning := meaning_of(words, name=self.name, python=self._python)):
            return meaning
        if why := self._explain(self):
            return why
        last = f" ({words[-1]})" if words else ""
        return f"its agent has ended{last}" if self.is_up else f"no agent came up there{last}"
