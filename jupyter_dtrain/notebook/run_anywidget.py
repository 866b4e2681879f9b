"""The run's view in a cell where our JupyterLab extension is not available (VS Code, Colab), through anywidget.

The kernel sends the script with the widget, so saving widget state adds 140 kB of script to the notebook, and JupyterLab with anywidget's
extension runs such scripts in any notebook that is opened. So this is limited to front ends that need it, and an optional dependency.
"""

from __future__ import annotations

from pathlib import Path

import ipywidgets
import traitlets

from .run_widget import RunWidget

try:
    import anywidget
except ImportError as error:
    raise ImportError('anywidget is not installed: pip install "jupyter_dtrain[widget]"') from error

STATIC = Path(__file__).parent / "static"
_SCRIPT, _STYLE = STATIC / "cell_view.js", STATIC / "cell_view.css"


def is_built() -> bool:
    """Return whether the script exists: in a checkout after a build, in an installed package always."""
    return _SCRIPT.exists() and _STYLE.exists()


class RunAnyWidget(anywidget.AnyWidget, RunWidget):  # type: ignore[misc]  # anywidget is optional
    """The run's widget, with its script."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)

    def __init__(self, summary: str) -> None:
        super().__init__(_esm=_SCRIPT.read_text(encoding="utf-8"), _css=_STYLE.read_text(encoding="utf-8"), summary=summary)

    def close(self) -> None:
        """Remove the widget and its layout from front ends; anywidget reacts only to closed comms."""
        for widget in (self, self.layout):
            ipywidgets.DOMWidget.close(widget)
