"""The run in the output of its cell while it goes on, through anywidget.

Everything that is shown is in one trait that is written anew, so that a view that opens late has all of it and never asks. It is
written by the thread that runs the cell; what a front end sent back would wait for the end of the cell, so it sends nothing.
"""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

from ..protocol import PROTOCOL_VERSION, ClusterUpdate, Points, RunUpdate, Snapshot

STATIC = Path(__file__).parent / "static"
_SCRIPT, _STYLE = STATIC / "cell_view.js", STATIC / "cell_view.css"


def is_built() -> bool:
    """Return whether the front end is there: a checkout has it once it was built, an installed package always."""
    return _SCRIPT.exists() and _STYLE.exists()


class RunWidget(anywidget.AnyWidget):
    """Shows the snapshot that it holds, and hides the element with the id `summary` on the page that it is drawn on."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    snapshot = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)

    def __init__(self, summary: str) -> None:
        super().__init__(_esm=_SCRIPT.read_text(encoding="utf-8"), _css=_STYLE.read_text(encoding="utf-8"), summary=summary)

    def show(self, run: RunUpdate, curves: list[Points]) -> None:
        """Show the run as it is now."""
        cluster = ClusterUpdate(phase="running")
        self.snapshot = Snapshot(version=PROTOCOL_VERSION, cluster=cluster, run=run, points=curves).to_json()

    def bundle(self) -> dict[str, object]:
        """Return the display of it, nothing where no widgets are shown: the summary is there."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": "", "application/vnd.jupyter.widget-view+json": view}
