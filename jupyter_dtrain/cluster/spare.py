"""An engine in reserve, with torch imported, that takes the place of one that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import psutil

from .devices import DevicePlan
from .launcher import Member

MEMORY = 2 << 30
"""Bytes that have to be free for an engine that only waits."""
RETRY = timedelta(seconds=5)
"""Time until another is tried where one has ended."""


class Spare:
    """At most one engine in reserve.

    Parameters
    ----------
    start : callable
        Starts an engine.
    has_ended : callable
        Says whether the process of this name has.
    is_registered : callable
        Says whether the engine of this id is.
    warm_up : callable
        Lets an engine import torch.
    memory : int
        Bytes that have to be free on this host.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Member],
        has_ended: Callable[[str], bool],
        is_registered: Callable[[int], bool],
        warm_up: Callable[[Member], None],
        memory: int = MEMORY,
    ) -> None:
        self._start, self._has_ended, self._memory = start, has_ended, memory
        self._is_registered, self._warm_up = is_registered, warm_up
        self._member: Member | None = None
        self._not_before = 0.0

    @property
    def plan(self) -> DevicePlan | None:
        """What the engine in reserve computes on, ``None`` where there is none."""
        return None if self._member is None else self._member.plan

    @property
    def ready(self) -> bool:
        """Whether there is one that has imported torch."""
        return self._member is not None and self._member.warm and not self._has_ended(self._member.name)

    def prepare(self) -> None:
        """See to it that there is one, if there is memory for it. Does not wait; to be called again and again."""
        if self._member is not None and self._has_ended(self._member.name):
            self._member, self._not_before = None, time.monotonic() + RETRY.total_seconds()
        if self._member is None:
            if time.monotonic() >= self._not_before and psutil.virtual_memory().available >= self._memory:
                self._member = self._start()
        elif self._member.warming is None and self._is_registered(self._member.engine_id):
            self._warm_up(self._member)

    def acquire(self, plan: DevicePlan) -> Member | None:
        """Return the engine in reserve, for `plan`; it is in reserve no longer. ``None`` if there is none that lives.

        A process sees the GPU alone that it was started for: an engine that was started for another stays in reserve.
        """
        if self._member is None or self._member.plan.index != plan.index:
            return None
        member, self._member = self._member, None
        if self._has_ended(member.name):
            return None
        member.plan = plan
        return member
