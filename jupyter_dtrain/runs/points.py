"""Write, read and thin the points of curves in SQLite, and keep a summary of each curve."""

from __future__ import annotations

import math
import sqlite3

from ..protocol import CurveSummary
from .curves import MAX_VIEW_POINTS, OF_DEVICES, Curve, num_stretches_of
from .overviews import drop_overview, overview_of
from .record_rows import summary_of

_FINITE = "abs(value) < 9e999"


def write_points(connection: sqlite3.Connection, curve: int, points: Curve) -> None:
    """Append `points` to a curve and update the curve's summary."""
    if not points.time:
        return
    connection.executemany(
        "INSERT INTO points (curve, step, time, value) VALUES (?, ?, ?, ?)",
        ((curve, *point) for point in zip(points.step, points.time, points.value, strict=True)),  # SQLite stores nan as NULL
    )
    drop_overview(connection, curve)
    finite = [value for value in points.value if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (None, None)
    # `ifnull`, because `min` of NULL and a number is NULL.
    connection.execute(
        "UPDATE curves SET last = ?, low = min(ifnull(low, ?), ifnull(?, low)), high = max(ifnull(high, ?), ifnull(?, high))"
        " WHERE curve = ?",
        (points.value[-1], low, low, high, high, curve),
    )


def cut_points(connection: sqlite3.Connection, curve: int, step: int) -> int:
    """Delete the points of a curve after `step`; return their number."""
    deleted = connection.execute("DELETE FROM points WHERE curve = ? AND step > ?", (curve, step)).rowcount
    if deleted:
        drop_overview(connection, curve)
        connection.execute(
            "UPDATE curves SET last = (SELECT value FROM points WHERE curve = :curve ORDER BY step DESC, rowid DESC LIMIT 1),"
            f" low = (SELECT min(value) FROM points WHERE curve = :curve AND {_FINITE}),"
            f" high = (SELECT max(value) FROM points WHERE curve = :curve AND {_FINITE}) WHERE curve = :curve",
            {"curve": curve},
        )
    return deleted


def summaries(connection: sqlite3.Connection) -> dict[int, list[CurveSummary]]:
    """Return the summaries of all runs' curves except those of devices, by the number of the run."""
    found: dict[int, list[CurveSummary]] = {}
    if "last" not in {row["name"] for row in connection.execute("PRAGMA table_info(curves)")}:
        return found
    rows = connection.execute(f"SELECT number, name, last, low, high FROM curves WHERE name NOT LIKE '{OF_DEVICES}%' ORDER BY curve")
    for row in rows:
        if isinstance(row["number"], int) and (summary := summary_of(row)) is not None:
            found.setdefault(row["number"], []).append(summary)
    return found


def all_points(connection: sqlite3.Connection, number: int, name: str) -> Curve:
    """Return all points of the curve `name` of a run by step; an empty curve if there are none."""
    points = Curve()
    for row in connection.execute(
        "SELECT step, time, value FROM points JOIN curves USING (curve) WHERE number = ? AND name = ? ORDER BY step, points.rowid",
        (number, name),
    ):
        _append(points, row)
    return points


def points_between(connection: sqlite3.Connection, curve: int, first: int | None, last: int | None, *, limit: int) -> tuple[Curve, bool]:
    """Return at most `limit` points of a curve, and whether some were omitted; see :meth:`~.store.RunStore.view`."""
    if first is None and last is None and limit <= MAX_VIEW_POINTS:
        overview = overview_of(connection, curve, limit)
        if overview is not None:
            return overview, True
    points = Curve()
    span = {"curve": curve, "first": -(2**62) if first is None else first, "last": 2**62 if last is None else last}
    where = "FROM points WHERE curve = :curve AND step BETWEEN :first AND :last"
    total, low, high = connection.execute(f"SELECT count(*), min(step), max(step) {where}", span).fetchone()
    if total <= limit:
        query = f"SELECT step, time, value {where} ORDER BY step, rowid"
    else:
        span |= {"low": low, "stretches": num_stretches_of(limit), "width": high - low + 1}
        # SQLite takes the other columns from the row with the minimum. NULL, a gap, counts as the largest value.
        chosen = "SELECT step, time, value, rowid AS place"
        stretch = "GROUP BY (step - :low) * :stretches / :width"
        queries = [
            f"{chosen}, min(value) {where} {stretch}",
            f"{chosen}, max(ifnull(value, 9e999)) {where} {stretch}",
            f"{chosen}, min(value) {where}",
            f"{chosen}, max(value) {where}",
            f"SELECT * FROM ({chosen}, 0 {where} ORDER BY step, rowid LIMIT 1)",
            f"SELECT * FROM ({chosen}, 0 {where} ORDER BY step DESC, rowid DESC LIMIT 1)",
        ]
        query = f"SELECT DISTINCT step, time, value, place FROM ({' UNION ALL '.join(queries)}) ORDER BY step, place"
    for row in connection.execute(query, span):
        _append(points, row)
    return points, total > limit


def value_between(connection: sqlite3.Connection, number: int, name: str, step: int) -> float | None:
    """Return the value at `step` of the curve `name`, interpolated between the points around it or extrapolated from the last two.

    An extrapolated value does not exceed the next whole number, at which a loader has returned all of its batches.
    """
    curve = "FROM points JOIN curves USING (curve) WHERE number = :number AND curves.name = :name AND typeof(points.value) = 'real'"
    span = {"number": number, "name": name, "step": step}
    before = f"SELECT step, value {curve} AND step <= :step ORDER BY step DESC, points.rowid DESC LIMIT 2"
    after = f"SELECT step, value {curve} AND step > :step ORDER BY step LIMIT 1"
    known = [(row["step"], row["value"]) for query in (before, after) for row in connection.execute(query, span)]
    known = sorted((at, value) for at, value in known if isinstance(at, int) and isinstance(value, float))
    if not known or known[0][0] > step:
        return None
    (start, first), (end, second) = known[-2:] if len(known) > 1 else known * 2
    value = second if end == start else first + (second - first) * (step - start) / (end - start)
    return float(min(value, math.floor(second) + 1) if end <= step else value)


def _append(points: Curve, row: sqlite3.Row) -> None:
    step, when, value = row["step"], row["time"], row["value"]
    if isinstance(step, int) and isinstance(when, float) and isinstance(value, float | None):  # skips rows of other programs
        points.append(step, when, float("nan") if value is None else value)
