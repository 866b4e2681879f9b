"""What a cell shows of its run: a live view while it goes on, and in its place a summary that stays when it has ended.

A widget is empty wherever its kernel is not: in the saved notebook, on GitHub, after nbconvert. So the summary is in the notebook from
the beginning, as an output of its own that the view hides where it is drawn, and is written anew from time to time: a kernel that dies
leaves how far its run came. Both in one output would not do, because JupyterLab then shows the widget, whether it can be drawn or not.
The interactive curves of past runs are in the sidebar.

All of it is shown by the thread that runs the cell, in moments in which that thread only waits, and never for more than a
hundredth of the time.

The view needs a front end that can draw it: JupyterLab or Notebook with our extension, which shows that it is there by listening to the
telemetry. It may come late, in a notebook whose cells all run at once. Whoever has none sees the summary, as the run goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..options import View
from ..protocol import Points, RunUpdate
from ..runs.curves import EPOCH, LEARNING_RATE, SAMPLES_PER_SECOND
from .display import Display
from .front_end import is_notebook, new_run_widget, writes_over
from .summary import Summary

if TYPE_CHECKING:
    from ..runs.record import ViewedRun
    from .run_widget import RunWidget

INTERVAL = 1.0
"""Seconds between two pictures at least."""
SUMMARY_INTERVAL = 5.0
"""Seconds between two summaries of a run that goes on: by so much may they be behind what a kernel that dies had reached,"""
SUMMARY_PART = 0.02
"""or by such a part of the run's time: a notebook that several people edit keeps every one of them."""
SHARE = 0.01
"""Part of the time that may go into either."""
LONG = 5.0
"""Seconds from which a cell that trains nothing and reads large data has a view all the same."""
MAX_POINTS = 500
"""Points of one curve: a chart in a cell has about as many pixels."""
_log = logging.getLogger(__name__)


class RunView:
    """The view of one run.

    Parameters
    ----------
    view : {"live", "summary", "off"}
        What to show.
    at_once : bool
        Whether to show it before the first step. A view that appears later breaks a progress bar that the cell has begun; one that
        appears for a cell that trains nothing is in the way.
    has_extension : Callable[[], bool]
        Whether a front end with our JupyterLab extension is listening.
    """

    def __init__(self, view: View, *, at_once: bool, has_extension: Callable[[], bool]) -> None:
        self._view: View = view
        self._at_once = at_once
        self._has_extension = has_extension
        self._widget: RunWidget | None = None
        self._summary, self._live = Display(), Display()
        self._due = self._summary_due = 0.0

    def update(self, recorder: ViewedRun) -> None:
        """Show how the run is doing, where there is something to show and it is time to. It fails for no reason."""
        if self._view == "off":
            return
        try:
            self._update(recorder)
        except Exception:
            self._view = "off"
            _log.exception("the run cannot be shown in its cell")

    def cleared(self) -> None:
        """Know that the cell has cleared its output, this view with it."""
        self._summary.is_shown = self._live.is_shown = False
        self._view = "off" if self._view == "off" else "summary"
        self._close()

    def _update(self, recorder: ViewedRun) -> None:
        if recorder.has_ended:
            self._view = "off"
            self._finish(recorder.run_update(), recorder)
        elif self._view == "live" and time.monotonic() >= self._due:
            run = recorder.run_update()
            if self._at_once or run.step or (run.rows_per_second and run.elapsed > LONG):
                self._draw(run, recorder)

    def _draw(self, run: RunUpdate, recorder: ViewedRun) -> None:
        if not is_notebook() or not writes_over(has_extension=self._has_extension()):
            self._view = "summary"
            return
        began = time.monotonic()
        if began >= self._summary_due:
            self._show_summary(Summary(run, recorder.outline(MAX_POINTS)))
            self._summary_due = _next(began, max(SUMMARY_INTERVAL, SUMMARY_PART * run.elapsed))
        if self._widget is None:
            self._widget = new_run_widget(self._summary.id, has_extension=self._has_extension())
        began = time.monotonic()  # without what was imported for it
        if self._widget is not None:
            self._widget.show(run, _drawn(recorder))
            if not self._live.is_shown:
                self._live.show(self._widget.bundle())
        self._due = _next(began, INTERVAL)

    def _finish(self, run: RunUpdate, recorder: ViewedRun) -> None:
        if self._live.is_shown:
            self._live.show({"text/plain": "", "text/html": ""})
        self._close()
        summary = Summary(run, recorder.outline(MAX_POINTS))
        if self._summary.is_shown or not summary.is_empty:
            self._show_summary(summary)

    def _show_summary(self, summary: Summary) -> None:
        html = f'<div id="{self._summary.id}">\n{summary.html()}\n</div>'
        self._summary.show({"text/plain": summary.text(), "text/html": html})

    def _close(self) -> None:
        if self._widget is not None:
            self._widget.close()
            self._widget = None


def _next(began: float, interval: float) -> float:
    """Return when it is time again for what has been done since `began`."""
    now = time.monotonic()
    return now + max(interval, (now - began) / SHARE)


def _drawn(recorder: ViewedRun) -> list[Points]:
    """Return the curves that a cell shows; over steps, so without their times."""
    curves = recorder.outline(MAX_POINTS)
    return [replace(curve, time=[]) for curve in curves if curve.name not in (EPOCH, LEARNING_RATE, SAMPLES_PER_SECOND)]
