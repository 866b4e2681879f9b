"""Deduplicate scalars that the cell logs, for example with TensorBoard: a resumed run reports some points again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..errors import ProtocolError
from ..protocol import Scalars

Point = tuple[int, float, float]  # step, time, value


class LoggedScalars:
    """Count the points of each curve that the cell logs, to recognize those that a resumed run reports again.

    Parameters
    ----------
    measured : collection of str
        Names of curves that this project records. A logged curve with such a name is renamed.
    """

    def __init__(self, measured: Collection[str]) -> None:
        self._measured = measured
        self._known: dict[str, int] = {}

    def restore(self, name: str, num_points: int) -> None:
        """Start with `num_points` known points of the curve `name`."""
        if name not in self._measured:
            self._known[name] = num_points

    def count(self, name: str) -> int:
        """Return the number of known points of the curve `name`."""
        return self._known.get(name, 0)

    def take_back(self, lost: Mapping[str, int]) -> None:
        """Subtract the `lost` last points of each curve, which will be reported again."""
        for name in self._known:
            self._known[name] -= lost.get(name, 0)

    def fresh(self, event: Scalars) -> tuple[str, list[Point]]:
        """Return the curve's name and the points of the event that are new. Points of ranks other than 0 are ignored.

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
    """Return the name of the curve for what a cell logs as `name`."""
    return f"{name} (logged)" if name in measured else name
