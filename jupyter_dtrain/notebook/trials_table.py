"""A cell's trials as a table: varied values, progress and results. Its final state stays in the notebook."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from ..protocol import RUN_PHASES_ENDED, RunUpdate
from ..runs.curves import LOSS
from ..runs.run_progress import duration
from .display import Display
from .summary import number, spark

if TYPE_CHECKING:
    from ..options import Metric
    from ..trials.tried import Tried

INTERVAL = 1.0
"""Seconds between two updates of the table."""
MAX_POINTS = 100
SPARKS = 12
BEST = "★"


class _Row(NamedTuple):
    cells: list[str]
    is_best: bool


class TrialsTable:
    """The table of one cell's trials.

    Parameters
    ----------
    metric : Metric, optional
        The metric that compares them.
    """

    def __init__(self, metric: Metric | None) -> None:
        self._metric = metric
        self._display = Display()
        self._due = 0.0

    def update(self, tried: Sequence[Tried], best: Tried | None) -> None:
        """Update the table if it is time to."""
        if time.monotonic() >= self._due:
            self.show(tried, best)

    def show(self, tried: Sequence[Tried], best: Tried | None, note: str = "") -> None:
        """Show the table, with a line below."""
        self._due = time.monotonic() + INTERVAL
        head = ["", *(name for name, _ in tried[0].trial.texts), "", "step", LOSS, "", *self._metric_head(), "time"]
        rows = [_Row(self._cells(one, one is best), one is best) for one in tried]
        self._display.show({"text/plain": _text(head, rows, note), "text/html": _html(head, rows, note)})

    def _metric_head(self) -> list[str]:
        return [] if self._metric is None else [f"{self._metric.name} ({self._metric.mode})"]

    def _cells(self, tried: Tried, is_best: bool) -> list[str]:
        run = tried.run.run_update() if tried.run is not None else None
        curves = tried.run.outline(MAX_POINTS) if tried.run is not None else []
        losses = next((curve.value for curve in curves if curve.name == LOSS), [])
        cells = [BEST if is_best else "", *(text for _, text in tried.trial.texts), _state(tried, run)]
        cells.append(f"{run.step:,}" if run is not None and run.step else "")
        cells += [_last_loss(run) if run is not None else "", spark([value for value in losses if value is not None], SPARKS)]
        if self._metric is not None:
            cells.append("" if tried.value is None else number(tried.value))
        return [*cells, duration(run.elapsed) if run is not None else ""]


def _last_loss(run: RunUpdate) -> str:
    return run.odd_loss or (number(run.loss) if run.loss is not None else "")


def _state(tried: Tried, run: RunUpdate | None) -> str:
    if tried.error is not None:
        return f"failed: {tried.error}".partition("\n")[0]
    if run is None:
        return tried.detail
    if run.phase == "pruned":
        return f"pruned at step {run.step:,}"
    if run.phase == "failed":
        return f"failed: {run.error}"
    if run.phase == "running" and run.fraction is not None:
        return f"{run.fraction:.0%}"
    return run.phase if run.phase in RUN_PHASES_ENDED or run.step else "starting"


def _text(head: Sequence[str], rows: Sequence[_Row], note: str) -> str:
    lines = [head, *(row.cells for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, *filter(None, [note])])


def _html(head: Sequence[str], rows: Sequence[_Row], note: str) -> str:
    def line(tag: str, cells: Sequence[str], *, bold: bool = False) -> str:
        inner = (f"<b>{escape(cell)}</b>" if bold and cell else escape(cell) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in inner) + "</tr>"

    body = "".join(line("td", row.cells, bold=row.is_best) for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>{below}"
