"""A spare engine, with torch imported, to replace a lost one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import psutil

from .devices import DevicePlan
from .launcher import Member

MEMORY = 2 << 30
"""Bytes of free memory that a spare engine requires."""
RETRY = timedelta(seconds=5)
"""Time until a new attempt after a spare has ended."""


class Spare:
    """At most one spare engine.

    Parameters
    ----------
    start : callable
        Starts an engine.
    has_ended : callable
        Returns whether the process of this name has ended.
    is_registered : callable
        Returns whether the engine of this id is registered.
    warm_up : callable
        Makes an engine import torch.
    memory : int
        Bytes that must be free on this host.
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
        """The spare engine's plan, ``None`` if there is none."""
        return None if self._member is None else self._member.plan

    @property
    def ready(self) -> bool:
        """Whether there is a spare that has imported torch."""
        return self._member is not None and self._member.warm and not self._has_ended(self._member.name)

    def prepare(self) -> None:
        """Start a spare if there is none and enough memory. Does not block; called repeatedly."""
        if self._member is not None and self._has_ended(self._member.name):
            self._member, self._not_before = None, time.monotonic() + RETRY.total_seconds()
        if self._member is None:
            if time.monotonic() >= self._not_before and psutil.virtual_memory().available >= self._memory:
                self._member = self._start()
        elif self._member.warming is None and self._is_registered(self._member.engine_id):
            self._warm_up(self._member)

    def acquire(self, plan: DevicePlan) -> Member | None:
        """Hand out the spare engine for `plan`; ``None`` if there is no living one that fits.

        A process sees only the GPU that it was started for: a spare that was started for another GPU is kept.
        """
        if self._member is None or self._member.plan.index != plan.index:
            return None
        member, self._member = self._member, None
        if self._has_ended(member.name):
            return None
        member.plan = plan
        return member
