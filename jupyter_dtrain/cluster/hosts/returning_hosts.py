"""Hosts that were lost and may come back, for a run that continues with fewer engines meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ...errors import ClusterError
from ..launcher import Member
from ..spare import Spare
from .login_failures import is_down
from .remote_host import RemoteHost

Redial = Callable[[RemoteHost], RemoteHost]
"""Starts an agent on a host that was lost, without waiting for it."""
FIRST, LONGEST = timedelta(seconds=5), timedelta(seconds=60)
"""Time between two attempts to reach a host. It doubles each time, as a host that has come back may be lost again."""


@dataclass
class MissingHost:
    """A host that was lost.

    Attributes
    ----------
    lost : RemoteHost
        The lost host.
    num_engines : int
        Engines that it had; 0 once it was taken back.
    pause : float
        Seconds until the attempt after the next.
    due : float
        Time of the next attempt, on the monotonic clock.
    told : str
        The last reported reason why it is not used.
    """

    lost: RemoteHost
    num_engines: int
    pause: float = FIRST.total_seconds()
    due: float = field(default_factory=lambda: time.monotonic())
    told: str = ""


@dataclass
class ReturnedHost:
    """A host that has come back, with engines that are not ranks yet."""

    missing: MissingHost
    host: RemoteHost
    engines: Sequence[Spare]


class ReturningHosts:
    """Try repeatedly to reach lost hosts, on a separate thread, and start engines there.

    Parameters
    ----------
    redial : callable, optional
        ``None``: agents cannot be started again.
    make_ready : callable
        Takes the lost host, its new agent and a number, and returns that many spare engines; raises a `ClusterError` if it cannot be used.
    """

    def __init__(
        self,
        redial: Redial | None,
        make_ready: Callable[[RemoteHost, RemoteHost, int], Sequence[Spare]],
    ) -> None:
        self._redial, self._make_ready = redial, make_ready
        self._lock = threading.Lock()
        self._missing: dict[str, MissingHost] = {}
        self._back: ReturnedHost | None = None
        self._thread: threading.Thread | None = None
        self._dialed: RemoteHost | None = None
        self._is_over = False
        self._news: list[str] = []

    @property
    def hosts(self) -> list[RemoteHost]:
        """Hosts that are back, but not part of the cluster yet."""
        back = self._back
        return [] if back is None else [back.host]

    def miss(self, host: RemoteHost, *, num_engines: int) -> None:
        """Start to look for a host."""
        before = self._missing.get(host.name)
        missing = self._missing[host.name] = MissingHost(host, num_engines)
        if before is not None:  # it was back in between
            missing.pause, missing.due, missing.told = before.pause, before.due, before.told

    def look(self) -> bool:
        """Return whether a host's engines are ready; if there are none, look for hosts. Does not block; called often."""
        back = self._back
        if back is not None and back.host.lost:
            back = self._back = None
        if back is not None:
            for engine in back.engines:
                engine.prepare()
            return all(engine.ready for engine in back.engines)
        now = time.monotonic()
        due = [missing for missing in self._missing.values() if missing.num_engines and missing.due <= now]
        if self._redial is not None and due and self._thread is None and not self._is_over:
            self._thread = threading.Thread(target=self._try, args=(due,), name="dtrain-return", daemon=True)
            self._thread.start()
        return False

    def take(self) -> tuple[RemoteHost, RemoteHost, list[Member]] | None:
        """Return a lost host, its new connection and its engines, which then belong to the caller; ``None`` if none is ready."""
        back = self._back
        plans = [] if back is None else [engine.plan for engine in back.engines]
        found = [] if back is None else [engine.acquire(plan) for engine, plan in zip(back.engines, plans, strict=True) if plan is not None]
        members = [member for member in found if member is not None]
        if back is None or not members or back.host.lost:
            return None
        self._back, back.missing.num_engines = None, 0
        return back.missing.lost, back.host, members

    def news(self) -> list[str]:
        """Return new messages since the last call."""
        news, self._news = self._news, []
        return news

    def stop(self) -> list[RemoteHost]:
        """Stop looking; return the hosts with running agents, which the caller must end."""
        with self._lock:
            self._is_over = True
            if self._dialed is not None:
                self._dialed.give_up()  # its agent, if any, ends with the connection
        if (thread := self._thread) is not None:
            thread.join()
        return self.hosts

    def _try(self, due: Sequence[MissingHost]) -> None:
        try:
            for missing in due:
                missing.due = time.monotonic() + missing.pause
                missing.pause = min(2 * missing.pause, LONGEST.total_seconds())
                if self._has_returned(missing):
                    break
        finally:
            self._thread = None

    def _has_returned(self, missing: MissingHost) -> bool:
        assert self._redial is not None
        with self._lock:
            if self._is_over:
                return False
            host = self._dialed = self._redial(missing.lost)
        try:
            host.wait_up()
            engines = self._make_ready(missing.lost, host, missing.num_engines)
        except ClusterError as error:
            self._note(missing, str(error).removeprefix(f"{host.name}: "))
            engines = ()
        with self._lock:
            self._dialed = None
            if engines and not host.lost:
                self._back = ReturnedHost(missing, host, engines)
                self._news.append(f"The host {host.name} is back: {len(engines)} engine{'s' * (len(engines) > 1)} to start there.")
                return True
        host.begin_end()
        host.end()
        return False

    def _note(self, missing: MissingHost, why: str) -> None:
        if not self._is_over and not is_down(why) and why != missing.told:
            missing.told = why
            self._news.append(f"The host {missing.lost.name} can be reached again, but cannot be used: {why} The run continues without it.")
