"""What a run has to say to the user, each text once: all ranks say the same."""

from __future__ import annotations

from ..protocol import Notice

MAX_NOTICES = 100
"""Notices of one run that are shown; a run that says more says it in a loop."""


class Notices:
    """The notices of one run, in order."""

    def __init__(self) -> None:
        self._by_text: dict[str, Notice] = {}
        self._fresh: list[Notice] = []

    def add(self, notice: Notice) -> None:
        """Add one, unless its text was there."""
        if notice.text not in self._by_text and len(self._by_text) < MAX_NOTICES:
            self._by_text[notice.text] = notice
            self._fresh.append(notice)

    def all(self) -> list[Notice]:
        """Return all of them."""
        return list(self._by_text.values())

    def fresh(self) -> list[Notice]:
        """Return those since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh
