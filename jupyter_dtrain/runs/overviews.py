"""Store thinned copies of long curves of ended runs, so that a page of fifty curves need not read all their points.

An overview is a blob in the database: the columns one after the other, little-endian, 8 bytes a number. It is written when its run ends,
and deleted when points of its curve are added or deleted. So it always agrees with the points.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import numpy as np

from .curves import MAX_VIEW_POINTS, Curve, num_stretches_of
from .thinning import kept_positions

_KINDS = "<i8", "<f8", "<f8"  # of steps, times and values
_BYTES = 8 * len(_KINDS)  # of one point


def write_overviews(connection: sqlite3.Connection, number: int, curves: Mapping[str, Curve]) -> None:
    """Store the overviews of the curves of run `number`, by name, except those short enough for a view, as after a rewind."""
    for name, points in curves.items():
        found = connection.execute("SELECT curve FROM curves WHERE number = ? AND name = ?", (number, name)).fetchone()
        if found is None:
            continue
        (total,) = connection.execute("SELECT count(*) FROM points WHERE curve = ?", (found["curve"],)).fetchone()
        if total > MAX_VIEW_POINTS:
            columns = points.step, points.time, points.value
            packed = b"".join(np.array(column, kind).tobytes() for column, kind in zip(columns, _KINDS, strict=True))
            connection.execute("INSERT OR REPLACE INTO overviews (curve, points) VALUES (?, ?)", (found["curve"], packed))


def drop_overview(connection: sqlite3.Connection, curve: int) -> None:
    """Delete the overview of a curve whose points have changed."""
    connection.execute("DELETE FROM overviews WHERE curve = ?", (curve,))


def overview_of(connection: sqlite3.Connection, curve: int, limit: int) -> Curve | None:
    """Return at most `limit` points of a curve from its overview.

    ``None`` if there is no valid overview: an older version or another program may have written the database.
    """
    if not list(connection.execute("PRAGMA table_info(overviews)")):
        return None
    found = connection.execute("SELECT points FROM overviews WHERE curve = ?", (curve,)).fetchone()
    packed = None if found is None else found["points"]
    if not isinstance(packed, bytes) or not 0 < len(packed) <= _BYTES * MAX_VIEW_POINTS or len(packed) % _BYTES:
        return None
    count = len(packed) // _BYTES
    step, time, value = (np.frombuffer(packed, kind, count, offset=8 * count * place) for place, kind in enumerate(_KINDS))
    if count > limit:
        kept = kept_positions(step, value, num_stretches_of(limit))
        step, time, value = step[kept], time[kept], value[kept]
    return Curve(step=step.tolist(), time=time.tolist(), value=value.tolist())
