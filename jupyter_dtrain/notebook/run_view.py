"""A cell's view of its run: live while it runs, then a summary that stays in the notebook.

A widget is empty without its kernel: in the saved notebook, on GitHub, after nbconvert. So from the beginning the summary is an output of
its own, which the live view hides once it is drawn. It is updated from time to time, so a kernel that dies leaves the run's progress. One
output for both would not work: JupyterLab prefers the widget even if it cannot draw it. Interactive curves of past runs are in the
sidebar.

The thread that runs the cell shows all of it while it waits, in at most a hundredth of the time.

The live view needs JupyterLab or Notebook with our extension, which listens to the telemetry. A front end may connect late, in a notebook
whose cells all run at once. Without the extension, the summary is shown while the run goes on.
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
"""Shortest time between two updates of the view, in seconds."""
SUMMARY_INTERVAL = 5.0
"""Shortest time between two summaries of a running run, in seconds: they lag so far behind if the kernel dies."""
SUMMARY_PART = 0.02
"""The same as a part of the run's time: a notebook edited by several people stores every version."""
SHARE = 0.01
"""Largest part of the time for either."""
LONG = 5.0
"""Seconds after which a cell that only reads large data gets a view as well."""
MAX_POINTS = 500
"""Most points of a curve, about the number of pixels of a chart."""
_log = logging.getLogger(__name__)


class RunView:
    """The view of one run.

    Parameters
    ----------
    view : {"live", "summary", "off"}
        What to show.
    at_once : bool
        Whether to show it before the first step. A view that appears later breaks a progress bar of the cell; a cell that does not train
        needs none.
    has_extension : callable
        Returns whether a front end with our JupyterLab extension listens.
    """

    def __init__(self, view: View, *, at_once: bool, has_extension: Callable[[], bool]) -> None:
        self._view: View = view
        self._at_once = at_once
        self._has_extension = has_extension
        self._widget: RunWidget | None = None
        self._summary, self._live = Display(), Display()
        self._due = self._summary_due = 0.0

    def update(self, recorder: ViewedRun) -> None:
        """Update the view if it is time to. Errors switch the view off instead of ending the run."""
        if self._view == "off":
            return
        try:
            self._update(recorder)
        except Exception:
            self._view = "off"
            _log.exception("the run cannot be shown in its cell")

    def cleared(self) -> None:
        """Note that the cell has cleared its output, including this view."""
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
        began = time.monotonic()  # without the time of the import
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
    """Return when the next update is due, after one that began at `began`."""
    now = time.monotonic()
    return now + max(interval, (now - began) / SHARE)


def _drawn(recorder: ViewedRun) -> list[Points]:
    """Return the curves that a cell shows, without times, as their x axis is the step."""
    curves = recorder.outline(MAX_POINTS)
    return [replace(curve, time=[]) for curve in curves if curve.name not in (EPOCH, LEARNING_RATE, SAMPLES_PER_SECOND)]
