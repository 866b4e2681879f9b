"""What a cell shows of a run: of one that this process records, or of one that another does."""

from __future__ import annotations

from typing import Protocol

from ..protocol import Points, RunUpdate


class ViewedRun(Protocol):
    """A run that goes on or has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""

    def run_update(self) -> RunUpdate:
        """Return the run as it is now."""

    def outline(self, limit: int) -> list[Points]:
        """Return the curves up to now, of at most `limit` points each."""
