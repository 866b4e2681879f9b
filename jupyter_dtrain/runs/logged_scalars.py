"""What the cell logs itself (a TensorBoard writer's scalars, say): each point once, however often it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..errors import ProtocolError
from ..protocol import Scalars

Point = tuple[int, float, float]  # step, time, value


class LoggedScalars:
    """How many points of each curve that the cell logs are known: a run that goes on from a snapshot tells some of them again.

    Parameters
    ----------
    measured : collection of str
        Names of curves that are not the cell's; one that it calls so is called otherwise.
    """

    def __init__(self, measured: Collection[str]) -> None:
        self._measured = measured
        self._known: dict[str, int] = {}

    def restore(self, name: str, num_points: int) -> None:
        """Begin with so many points of the curve `name`."""
        if name not in self._measured:
            self._known[name] = num_points

    def count(self, name: str) -> int:
        """Return how many points of the curve `name` are known."""
        return self._known.get(name, 0)

    def take_back(self, lost: Mapping[str, int]) -> None:
        """Forget the last points of curves, so many of each: they will be told again."""
        for name in self._known:
            self._known[name] -= lost.get(name, 0)

    def fresh(self, event: Scalars) -> tuple[str, list[Point]]:
        """Return what the curve is called, and the points of the event that are not known yet; rank 0 speaks for all.

        Raises
        ------
        ProtocolError
            Its columns have different lengths.
        """
        if len({len(event.step), len(event.time), len(event.value)}) > 1:
            raise ProtocolError(f"the columns of {event.name!r} have different lengths")
        name = logged_as(event.name, self._measured)
        if event.rank != 0:
            return name, []
        known = self._known.get(name, 0) - event.first
        self._known[name] = event.first + max(known, len(event.value))
        return name, list(zip(event.step, event.time, event.value, strict=True))[max(0, known) :]


def logged_as(name: str, measured: Collection[str]) -> str:
    """Return what the curve is called of what a cell logs as `name`."""
    return f"{name} (logged)" if name in measured else name
