"""The run in the output of its cell where our JupyterLab extension cannot be: in VS Code and in Colab, through anywidget.

The kernel sends the script with the widget, so whoever saves the widget's state keeps 140 kB of script in the notebook; JupyterLab with
anywidget's extension runs such scripts in any notebook that is opened. So this is for front ends that ask for it, and an extra.
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
    """Return whether the script is there: a checkout has it once it was built, an installed package always."""
    return _SCRIPT.exists() and _STYLE.exists()


class RunAnyWidget(anywidget.AnyWidget, RunWidget):  # type: ignore[misc]  # it may not be there
    """The same with its script."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)

    def __init__(self, summary: str) -> None:
        super().__init__(_esm=_SCRIPT.read_text(encoding="utf-8"), _css=_STYLE.read_text(encoding="utf-8"), summary=summary)

    def close(self) -> None:
        """Remove it from front ends, and its layout: that its comm is closed is all that anywidget understands."""
        for widget in (self, self.layout):
            ipywidgets.DOMWidget.close(widget)
