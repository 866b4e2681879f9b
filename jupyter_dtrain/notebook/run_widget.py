"""The run in the output of its cell while it goes on, as a widget whose script is in our JupyterLab extension.

A notebook therefore holds no more of it than names and numbers, and to open one that somebody else has written runs nothing.

Everything that is shown is in one trait that is written anew, so that a view that opens late has all of it and never asks. It is
written by the thread that runs the cell; what a front end sent back would wait for the end of the cell, so it sends nothing.
"""

from __future__ import annotations

import ipywidgets
import traitlets

from ..protocol import PROTOCOL_VERSION, WIDGET_MODULE, ClusterUpdate, Points, RunUpdate, Snapshot
from . import comm_targets

_MODULE_VERSION = f"{PROTOCOL_VERSION}.0.0"


class RunWidget(ipywidgets.DOMWidget):  # type: ignore[misc]  # it has no types
    """Shows the snapshot that it holds, and hides the element with the id `summary` on the page that it is drawn on."""

    _model_name = traitlets.Unicode("RunModel").tag(sync=True)
    _model_module = traitlets.Unicode(WIDGET_MODULE).tag(sync=True)
    _model_module_version = traitlets.Unicode(_MODULE_VERSION).tag(sync=True)
    _view_name = traitlets.Unicode("RunView").tag(sync=True)
    _view_module = traitlets.Unicode(WIDGET_MODULE).tag(sync=True)
    _view_module_version = traitlets.Unicode(_MODULE_VERSION).tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    snapshot = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    ended = traitlets.Bool(default_value=False).tag(sync=True)

    def show(self, run: RunUpdate, curves: list[Points]) -> None:
        """Show the run as it is now."""
        cluster = ClusterUpdate(phase="running")
        self.snapshot = Snapshot(version=PROTOCOL_VERSION, cluster=cluster, run=run, points=curves).to_json()

    def bundle(self) -> dict[str, object]:
        """Return the display of it, nothing where no widgets are shown: the summary is there."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": "", "application/vnd.jupyter.widget-view+json": view}

    def close(self) -> None:
        """Remove it from front ends, and with it what they save of it: its layout is a widget too.

        JupyterLab reports the end of a comm that it does not know as an error, and after a reload it does not know this one. So its
        model is told to end itself, which an unknown model does not hear, and each comm counts as closed from there.
        """
        if self.comm is None:
            return
        self.ended = True
        for widget in (self, self.layout):
            if widget.comm is not None:
                comm_targets.forget(widget.comm.comm_id)
            ipywidgets.DOMWidget.close(widget)
