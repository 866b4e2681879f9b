"""A run's summary in the notebook: a sentence, a table of its curves and a chart; in a terminal, text only.

While the run goes on, the sentence is phrased so that it stays true if the kernel dies, with how to resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from ..protocol import RUN_PHASES_ENDED, ClusterUpdate, DetachedRun, Points, RunUpdate
from ..runs.curves import EPOCH, LEARNING_RATE, LOSS, SAMPLES_PER_SECOND
from ..runs.run_progress import duration
from ..runs.svg_chart import picture
from ..system.resources import size_text

MAX_ROWS = 8
_LEVELS = "▁▂▃▄▅▆▇█"
_SPARKS = 24


class _Row(NamedTuple):
    """One curve: name, first, last, smallest and largest value as texts, and a sparkline."""

    name: str
    first: str
    last: str
    least: str
    greatest: str
    spark: str


class Summary:
    """Summary of a run's current state.

    Parameters
    ----------
    run : RunUpdate
    curves : sequence of Points
        May be downsampled.
    """

    def __init__(self, run: RunUpdate, curves: Sequence[Points]) -> None:
        self._run = run
        self._curves = [curve for curve in curves if curve.name not in (EPOCH, LEARNING_RATE, SAMPLES_PER_SECOND)]
        rows = [row for curve in self._curves if (row := _row(curve)) is not None]
        self._rows = sorted(rows, key=lambda row: row.name != LOSS)[:MAX_ROWS]

    @property
    def is_empty(self) -> bool:
        """Whether the run has neither finished a step nor logged anything."""
        return not self._run.step and not self._rows

    @property
    def sentence(self) -> str:
        """The run's result or progress in one line, without its name."""
        run = self._run
        if self._has_ended:
            steps = f"{run.step:,} step{'' if run.step == 1 else 's'}" if run.step or run.phase == "finished" else "no step finished"
            facts = [run.phase, f"{steps} in {duration(run.elapsed)}"]
        else:
            facts = [f"at step {run.step:,} after {duration(run.elapsed)}"]
        if run.samples_per_second:
            facts.append(f"{run.samples_per_second:,.0f} samples/s")
        if read := reading_text(run):
            facts.append(f"read at {read}")
        return ", ".join(facts) + f" on {run.world_size} engine{'' if run.world_size == 1 else 's'}"

    @property
    def _has_ended(self) -> bool:
        return self._run.phase in RUN_PHASES_ENDED

    @property
    def _way_on(self) -> list[str]:
        """What to do if the kernel has died: texts, every second one of which is code."""
        load = "%load_ext jupyter_dtrain"
        if self._run.detached:
            return [
                "The run continues if its kernel stops. To reattach: ",
                load,
                ", then ",
                f"%distribute attach {self._run.run_id}",
                ".",
            ]
        if self._run.checkpoint is None:
            return ["If the kernel was lost, run the cell again (there is no checkpoint yet)."]
        command = f"%distribute resume {self._run.run_id}"
        return ["If the kernel was lost, ", load, " and ", command, f" continue from step {self._run.checkpoint:,}."]

    def text(self) -> str:
        """Return the summary for a terminal."""
        lines = [f"{self._run.name}: {self.sentence}"]
        if not self._has_ended:
            lines.append("  " + "".join(self._way_on))
        width = max((len(row.name) for row in self._rows), default=0)
        lines += [f"  {row.name:<{width}}  {row.first} → {row.last}  {row.spark}".rstrip() for row in self._rows]
        return "\n".join(lines)

    def html(self) -> str:
        """Return the summary as HTML without scripts or own styles."""
        parts = [f"<p><b>{escape(self._run.name)}</b>: {escape(self.sentence)}</p>"]
        if not self._has_ended:
            pieces = (f"<code>{escape(text)}</code>" if index % 2 else escape(text) for index, text in enumerate(self._way_on))
            parts.append(f"<p>{''.join(pieces)}</p>")
        if self._rows:
            head = "".join(f"<th>{name}</th>" for name in ("metric", "first", "last", "min", "max"))
            body = "".join(
                f"<tr><td>{escape(row.name)}</td>"
                + "".join(f"<td>{text}</td>" for text in (row.first, row.last, row.least, row.greatest))
                + "</tr>"
                for row in self._rows
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts.append(picture(self._curves))
        return "\n".join(part for part in parts if part)


def reading_text(run: RunUpdate) -> str:
    """Return how fast this project's data sets read rows; empty if there are none."""
    if not run.rows_per_second:
        return ""
    rows = f"{run.rows_per_second:,.0f} rows/s"
    return rows if not run.bytes_per_second else f"{rows}, {size_text(run.bytes_per_second)}/s"


def _row(curve: Points) -> _Row | None:
    if not curve.value:
        return None
    # Keep a last value of nan, as users need to see it.
    first, last = number(curve.value[0]), number(curve.value[-1])
    values = [value for value in curve.value if value is not None]
    if not values:
        return _Row(curve.name, first, last, "–", "–", "")
    return _Row(curve.name, first, last, number(min(values)), number(max(values)), spark(values))


def number(value: float | None) -> str:
    """Format a value of a curve; ``None`` is a value that was not finite."""
    return "not finite" if value is None else f"{value:.4g}"


def spark(values: Sequence[float], length: int = _SPARKS) -> str:
    """Return a curve as a sparkline of at most `length` characters; empty without values."""
    if not values:
        return ""
    size = len(values) / min(length, len(values))
    pieces = [values[math.floor(i * size) : math.floor((i + 1) * size)] for i in range(min(length, len(values)))]
    means = [sum(piece) / len(piece) for piece in pieces if piece]
    low, high = min(means), max(means)
    if not math.isfinite(high - low) or high == low:
        return _LEVELS[0] * len(means)
    return "".join(_LEVELS[min(7, int(8 * (mean - low) / (high - low)))] for mean in means)


# ``%distribute status``, and notices about detached runs.


def describe(cluster: ClusterUpdate, run: RunUpdate | None) -> str:
    """Return the text of ``%distribute status``."""
    if cluster.phase != "running":
        text = "No engines are running." if cluster.phase == "stopped" else f"The engines are {cluster.phase}."
        if cluster.detail:
            text += f" {cluster.detail}"
        if cluster.phase == "stopped":
            text += "\nThe first %%distribute cell starts them, or `%distribute start -n 2` does it now."
        return text
    count = len(cluster.engines)
    lines = [f"{count} engine{'s' if count > 1 else ''} running"]
    lines += [f"  rank {e.rank}  {e.device:<7} {e.device_name}  ({e.host}, process {e.pid})" for e in cluster.engines]
    if run is not None:
        number = run.odd_loss if run.loss is None else f"{run.loss:.4g}"
        loss = "" if number is None else f", loss {number}"
        lines.append(f"{run.name}: {run.phase}, {_count(run.step, 'step')} in {run.elapsed:.1f} s{loss}")
    return "\n".join(lines)


def detached_text(runs: Iterable[DetachedRun]) -> str:
    """Return a line for each detached run that is running or has ended without a kernel."""
    return "\n".join(
        f"{run.run_id} finished without a kernel: `%distribute attach {run.run_id}` returns its results."
        if run.ended
        else f"{run.run_id} is still running detached: `%distribute attach {run.run_id}` follows it."
        for run in runs
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
