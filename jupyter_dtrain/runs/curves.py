"""Keep the curves of one run for two readers: views get thinned curves, and the store gets all points.

Memory is bounded: points that views have not fetched, and those that they may request again, are thinned. Rows for the store have all
points, and are dropped at once if there is no store.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..protocol import DeviceUse, Points, Progress

# A curve: one value over the steps of a run, as columns.
#
# A run of a million steps has a million points; a view a thousand pixels wide can show a few thousand. So what is sent to views and kept
# for them in memory is thinned. Thinning keeps the smallest and the largest value of each interval of steps, so that a spike survives,
# which a mean or every n-th point would hide. It also keeps both ends of the curve: its first, last, smallest and largest value are exact.
# The store keeps all points.

KEPT = 4
"""Points that every thinned curve keeps: the first, the last, the smallest and the largest."""
LEAST_LIMIT = KEPT + 2
"""Smallest number of points to which a curve can be thinned."""


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
        """Return the values with ``None`` for those that are not finite, which JSON cannot represent."""
        return [value if math.isfinite(value) else None for value in self.value]

    def thinned(self, limit: int) -> Curve:
        """Return a curve of at most `limit` points (at least `LEAST_LIMIT`) that looks the same.

        The first and the last point are kept, and the smallest and the largest finite value. The steps are divided into intervals of equal
        width, of which the points with the smallest and the largest value are kept. As the intervals are of steps and not of points, a
        curve that was thinned before and has grown since is thinned evenly. A value that is not finite counts as the largest of its
        interval, so that gaps are visible.
        """
        if len(self) <= limit:
            return self
        from .thinning import kept_positions  # needs NumPy, which is not imported for views without curves

        positions = kept_positions(self.step, self.value, num_stretches_of(limit))
        return Curve(
            step=[self.step[position] for position in positions],
            time=[self.time[position] for position in positions],
            value=[self.value[position] for position in positions],
        )


def num_stretches_of(limit: int) -> int:
    """Return the number of intervals of steps for a curve that is thinned to `limit` points."""
    return (limit - KEPT) // 2


MAX_VIEW_POINTS = 10_000
"""Maximum points of one curve in a view."""
OF_DEVICES = "device/"
"""Prefix of the curves of devices. They are recorded but not drawn, and keep their points when a run goes back, as they are over time."""
LOSS = "loss"
LEARNING_RATE = "learning_rate"
SAMPLES_PER_SECOND = "samples_per_second"
EPOCH = "epoch"  # passes over the training data, 1.5 is half way through the second: the x axis of curves over epochs
MEASURED = frozenset({LOSS, LEARNING_RATE, SAMPLES_PER_SECOND, EPOCH})
"""Names of the curves that this project records."""


class Rows(NamedTuple):
    """All new points of one curve, for the store."""

    name: str
    points: Curve


class RunCurves:
    """Curves by name, in order of appearance. Not thread-safe: its owner locks."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seen: dict[str, Curve] = {}
        self._fresh: dict[str, Curve] = {}
        self._rows: dict[str, Curve] | None = {}
        self._thinned: set[str] = set()  # curves of `_seen` and `_fresh` that were thinned

    # -- in ----------------------------------------------------------------------------------------------------------

    def restore(self, name: str, curve: Curve) -> None:
        """Restore a curve from the store; views get it with a snapshot."""
        self._seen[name] = self._bounded(name, curve)

    def add(self, name: str, step: int, time: float, value: float) -> None:
        """Add a point for views and the store."""
        fresh = self._fresh.setdefault(name, Curve())
        fresh.append(step, time, value)
        self._fresh[name] = self._bounded(name, fresh)  # thinned if no view fetches it
        self.record(name, step, time, value)

    def record(self, name: str, step: int, time: float, value: float) -> None:
        """Add a point for the store only."""
        if self._rows is not None:
            self._rows.setdefault(name, Curve()).append(step, time, value)

    def record_device(self, use: DeviceUse, step: int) -> None:
        """Record a report on a rank's device."""
        self.record(f"{OF_DEVICES}{use.rank}/utilization", step, use.time, use.utilization)
        self.record(f"{OF_DEVICES}{use.rank}/memory_used", step, use.time, use.memory_used)

    def add_epoch(self, progress: Progress, now: float) -> None:
        """Add a point to the curve that maps steps to epochs."""
        known = self.last_step(EPOCH)
        if known is not None and progress.step <= known:
            return
        part = (progress.batch - 1) / progress.batches if progress.batches else 0.0
        self.add(EPOCH, progress.step, now, progress.epoch - 1 + part)

    def cut(self, step: int) -> Counter[str]:
        """Drop the points after `step` from views' curves; return their number for each curve. Rows for the store are left."""
        lost: Counter[str] = Counter()
        for curves in (self._seen, self._fresh):
            for name, curve in curves.items():
                curves[name] = curve.up_to(step)
                lost[name] += len(curve) - len(curves[name])
        return lost

    # -- out ---------------------------------------------------------------------------------------------------------

    def last_step(self, name: str) -> int | None:
        """Return the last step of a curve in views, fetched or not; ``None`` without points."""
        known = self._fresh.get(name) or self._seen.get(name)
        return known.step[-1] if known else None

    def last_value(self, name: str) -> float | None:
        """Return the last value of a curve in views, fetched or not; ``None`` without points."""
        known = self._fresh.get(name) or self._seen.get(name)
        return known.value[-1] if known else None

    def drain(self) -> list[Points]:
        """Return the points since the last call, for views."""
        points = []
        for name, fresh in self._fresh.items():
            seen = self._seen.setdefault(name, Curve())
            seen.extend(fresh)
            self._seen[name] = self._bounded(name, seen)
            points.append(self._points(name, fresh, MAX_VIEW_POINTS))
        self._fresh = {}
        return points

    def snapshot(self) -> list[Points]:
        """Return the points that :meth:`drain` has returned so far."""
        return [self._points(name, curve, MAX_VIEW_POINTS) for name, curve in self._seen.items()]

    def outline(self, limit: int) -> list[Points]:
        """Return all curves, fetched by views or not, of at most `limit` points each."""
        return [self._points(name, whole, limit) for name, whole in self._whole()]

    def overviews(self) -> dict[str, Curve]:
        """Return the curves that are longer than a view's limit, thinned to it, by name."""
        long = ((name, whole) for name, whole in self._whole() if name in self._thinned or len(whole) > MAX_VIEW_POINTS)
        return {name: whole.thinned(MAX_VIEW_POINTS) for name, whole in long}

    def _whole(self) -> Iterator[tuple[str, Curve]]:
        """Yield all curves, fetched by views or not, as far as they are kept for views."""
        for name in dict.fromkeys([*self._seen, *self._fresh]):
            whole = Curve()
            for part in (self._seen.get(name), self._fresh.get(name)):
                if part is not None:
                    whole.extend(part)
            yield name, whole

    def take_rows(self) -> list[Rows]:
        """Return all points since the last call, for the store."""
        if self._rows is None:
            return []
        rows, self._rows = self._rows, {}
        return [Rows(name, points) for name, points in rows.items()]

    def drop_rows(self) -> None:
        """Stop keeping rows for the store."""
        self._rows = None

    def _bounded(self, name: str, curve: Curve) -> Curve:
        """Thin a curve that has twice the points of a view: seldom enough to cost little, soon enough to bound memory."""
        if len(curve) <= 2 * MAX_VIEW_POINTS:
            return curve
        self._thinned.add(name)
        return curve.thinned(MAX_VIEW_POINTS)

    def _points(self, name: str, curve: Curve, limit: int) -> Points:
        thin = curve.thinned(limit)
        return Points(
            run_id=self._run_id,
            name=name,
            step=list(thin.step),
            time=list(thin.time),
            value=thin.finite(),
            thinned=name in self._thinned or len(thin) < len(curve),
        )


def finite(value: float | None) -> float | None:
    """Return a finite value, ``None`` for any other, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None


def non_finite_text(value: float | None) -> str | None:
    """Return ``nan``, ``inf`` or ``-inf``; ``None`` for a finite value."""
    return None if value is None or math.isfinite(value) else str(value)
