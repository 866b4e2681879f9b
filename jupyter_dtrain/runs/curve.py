"""A curve: one value over the steps of a run, as columns.

A run of a million steps is a million points; a view a thousand pixels wide can show a few thousand. What is sent to
views and kept for them in memory is therefore thinned, and thinning keeps the smallest and the largest value of each
stretch of steps, so that a spike survives (a mean or every n-th point would hide it), and both ends of the curve: what is said of its
first, last, smallest and largest value is exact. The store keeps all points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

KEPT = 4
"""Points that every thinned curve has: the first, the last, the smallest and the largest."""
LEAST_LIMIT = KEPT + 2
"""Points to which a curve can be thinned."""


@dataclass(kw_only=True)
class Curve:
    """Points of one curve: columns of equal length.

    Attributes
    ----------
    step : list of int
        Optimizer step that the point belongs to.
    time : list of float
        Seconds since the epoch.
    value : list of float
        The value, possibly not finite.
    """

    step: list[int] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.step)

    def append(self, step: int, time: float, value: float) -> None:
        """Add one point at the end."""
        self.step.append(step)
        self.time.append(time)
        self.value.append(value)

    def extend(self, other: Curve) -> None:
        """Add all points of `other` at the end."""
        self.step += other.step
        self.time += other.time
        self.value += other.value

    def up_to(self, step: int) -> Curve:
        """Return the points of the steps up to `step`."""
        kept = bisect_right(self.step, step)
        return Curve(step=self.step[:kept], time=self.time[:kept], value=self.value[:kept])

    def finite(self) -> list[float | None]:
        """Return the values with ``None`` in place of those that are not finite, which JSON cannot say."""
        return [value if math.isfinite(value) else None for value in self.value]

    def thinned(self, limit: int) -> Curve:
        """Return a curve of at most `limit` points (at least `LEAST_LIMIT`) that looks the same.

        The first and the last point stay, and of all finite values the smallest and the largest. Apart from that the steps are cut into
        stretches of equal width, and of each the points with the smallest and the largest value stay. Because the stretches are counted
        in steps and not in points, a curve that was thinned before and has grown since comes out evenly. A value that is not finite takes
        the place of the largest of its stretch: a gap is worth seeing.
        """
        if len(self) <= limit:
            return self
        num_stretches = (limit - KEPT) // 2
        first = min(self.step)
        width = max(self.step) - first + 1
        kept: dict[int, tuple[int, int]] = {}  # stretch → positions of its smallest and its largest value
        for position, (step, value) in enumerate(zip(self.step, self.value, strict=True)):
            stretch = (step - first) * num_stretches // width
            low, high = kept.setdefault(stretch, (position, position))
            if math.isfinite(value):
                if value < self.value[low] or not math.isfinite(self.value[low]):
                    low = position
                if value > self.value[high] and math.isfinite(self.value[high]):
                    high = position
            elif math.isfinite(self.value[high]):
                high = position
            kept[stretch] = (low, high)
        finite = [position for position, value in enumerate(self.value) if math.isfinite(value)]
        always = {0, len(self) - 1} | {extreme(finite, key=self.value.__getitem__) for extreme in (min, max) if finite}
        positions = sorted(always.union(*kept.values()))
        return Curve(
            step=[self.step[position] for position in positions],
            time=[self.time[position] for position in positions],
            value=[self.value[position] for position in positions],
        )
