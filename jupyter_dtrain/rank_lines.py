"""What all ranks print, in lines that say whose each is."""

from __future__ import annotations

from collections.abc import Callable


class RankLines:
    """Puts a mark like ``[1]`` before each line of a rank.

    Lines of several ranks arrive in pieces and mixed, so a line is shown once it is complete. Of one that was written over with
    carriage returns, as progress bars are, the last state is shown.

    Parameters
    ----------
    show : callable
        Shows text printed to ``stdout`` or ``stderr``: (name, text).
    """

    def __init__(self, show: Callable[[str, str], None]) -> None:
        self._show = show
        self._begun: dict[tuple[int, str], str] = {}

    def stream(self, rank: int, name: str, text: str) -> None:
        """Take in what `rank` has printed to ``stdout`` or ``stderr``."""
        *lines, begun = (self._begun.pop((rank, name), "") + text).split("\n")
        if begun:
            # A carriage return at the end may still be followed by the end of the line.
            self._begun[rank, name] = begun[begun.rstrip("\r").rfind("\r") + 1 :]
        if lines:
            self._show(name, "".join(f"[{rank}] {_last_state(line)}\n" for line in lines))

    def flush(self) -> None:
        """Show the lines that were begun and not ended."""
        for (rank, name), begun in sorted(self._begun.items()):
            self._show(name, f"[{rank}] {_last_state(begun)}\n")
        self._begun.clear()


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
