"""Select the points that a thinned curve keeps. NumPy does so in a few milliseconds for 100,000 points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def kept_positions(steps: Sequence[int] | NDArray[Any], values: Sequence[float] | NDArray[Any], num_stretches: int) -> list[int]:
    """Return the indices of the points to keep: ends, extremes, and at most two of each of `num_stretches` (`Curve.thinned`)."""
    step, value = _whole_numbers(steps), np.asarray(values, dtype=float)
    is_finite = np.isfinite(value)
    lows = np.where(is_finite, value, np.inf)
    always = {0, len(value) - 1}
    if is_finite.any():
        always |= {int(lows.argmin()), int(np.where(is_finite, value, -np.inf).argmax())}
    first = int(step.min())
    width = int(step.max()) - first + 1
    exact = step if width * num_stretches < 1 << 62 else step.astype(object)
    stretch = ((exact - first) * num_stretches // width).astype(np.int64)
    kept = np.concatenate([_firsts(stretch, lows), _firsts(stretch, np.where(is_finite, -value, -np.inf))])
    return sorted(always.union(kept.tolist()))


def _firsts(stretch: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    """Return for each interval the position of its smallest value, the first of equal ones. No value is nan."""
    if (stretch[1:] < stretch[:-1]).any():  # not in recorded runs, whose points are ordered by step
        order = np.lexsort((value, stretch))  # a stable sort
        ordered = stretch[order]
        found: NDArray[Any] = order[np.concatenate([[True], ordered[1:] != ordered[:-1]])]
        return found
    starts = np.flatnonzero(np.concatenate([[True], stretch[1:] != stretch[:-1]]))
    smallest = np.minimum.reduceat(value, starts)
    at = np.flatnonzero(value == np.repeat(smallest, np.diff(starts, append=len(value))))
    firsts: NDArray[Any] = at[np.searchsorted(at, starts)]
    return firsts


def _whole_numbers(steps: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    if isinstance(steps, np.ndarray):
        return steps
    is_small = min(steps) > -(1 << 62) and max(steps) < 1 << 62
    return np.array(steps, dtype=np.int64 if is_small else object)  # Python integers, slowly
