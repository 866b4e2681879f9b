"""The run's live view in a cell, as a widget whose script is in our JupyterLab extension.

A notebook stores only names and numbers of it, so opening somebody else's notebook runs no code.

One trait holds the whole state and is replaced as a whole, so a view that opens late needs no request. The thread that runs the cell writes
it. The view sends nothing, as messages to the kernel would wait for the end of the cell.
"""

from __future__ import annotations

import ipywidgets
import traitlets

from ..protocol import PROTOCOL_VERSION, WIDGET_MODULE, ClusterUpdate, Points, RunUpdate, Snapshot
from . import comm_targets

_MODULE_VERSION = f"{PROTOCOL_VERSION}.0.0"


class RunWidget(ipywidgets.DOMWidget):  # type: ignore[misc]  # ipywidgets is untyped
    """Show a snapshot of a run, and hide the element with the id `summary` on the same page."""

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
        """Show the run's current state."""
        cluster = ClusterUpdate(phase="running")
        self.snapshot = Snapshot(version=PROTOCOL_VERSION, cluster=cluster, run=run, points=curves).to_json()

    def bundle(self) -> dict[str, object]:
        """Return the widget's MIME bundle. Its plain text is empty, as the summary is shown without widgets."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": "", "application/vnd.jupyter.widget-view+json": view}

    def close(self) -> None:
        """Remove the widget and its saved state from front ends, including its layout, which is a widget as well.

        JupyterLab reports an error when an unknown comm is closed, and after a reload it does not know this one. So the model is told to
        close itself, which is ignored if unknown, and the comms are then treated as closed by the front end.
        """
        if self.comm is None:
            return
        self.ended = True
        for widget in (self, self.layout):
            if widget.comm is not None:
                comm_targets.forget(widget.comm.comm_id)
            ipywidgets.DOMWidget.close(widget)
