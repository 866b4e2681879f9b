"""What the user is told about what was done with the cell: one line each, once, with the cell's own line."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import Message, Notice
from ..whose import users_frames


class Notes:
    """Says things to the user, from rank 0.

    Parameters
    ----------
    emit : callable
        Sends a message.
    rank : int
    """

    def __init__(self, emit: Callable[[Message], None], *, rank: int) -> None:
        self._emit = emit
        self._rank = rank
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Show `text`, unless it was said before."""
        if self._rank == 0 and text not in self._said:
            self._said.add(text)
            self._emit(Notice(rank=self._rank, text=text))

    @staticmethod
    def place() -> str:
        """Return `` (line 3)`` or `` (line 3, in Net.forward)``: the user's own code that is running, or nothing where there is none."""
        frame = next(users_frames(), None)
        if frame is None:
            return ""
        function = ".".join(part for part in frame.f_code.co_qualname.split(".") if not part.startswith("<"))  # without <locals>, <lambda>
        return f" (line {frame.f_lineno}, in {function})" if function else f" (line {frame.f_lineno})"
