"""Capabilities of the front end, as far as the kernel can tell: there is no protocol for them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython

from .kernel import origin_of_cell

if TYPE_CHECKING:
    from .run_widget import RunWidget

_VSCODE_VARIABLE = "__vsc_ipynb_file__"
"""Name in the user's namespace in which VS Code puts the notebook's path."""
_COLAB_MODULE = "google.colab"
"""Module that every Colab kernel has imported."""


def is_notebook() -> bool:
    """Return whether outputs can be updated in place, unlike in a terminal."""
    return hasattr(get_ipython(), "kernel")


def writes_over(*, has_extension: bool) -> bool:
    """Return whether the front end updates displays in place, as far as can be told.

    `jupyter console` does not: it would show a run's first state only. JupyterLab, Notebook and VS Code send a cell id with each request,
    which it does not. nbclient sends none either, and needs no intermediate states.
    """
    shell = get_ipython()
    return has_extension or _takes_script() or (shell is not None and origin_of_cell(shell).cell_id is not None)


def new_run_widget(summary: str, *, has_extension: bool) -> RunWidget | None:
    """Return a widget that replaces the summary with this id, or ``None`` if the front end could not draw one.

    Parameters
    ----------
    summary : str
        Id of the element that the view hides once it is drawn.
    has_extension : bool
        Whether a front end with our JupyterLab extension listens. Otherwise (nbclient, papermill, JupyterLab without it) only the
        summary is shown, and no widget state is saved in the notebook.
    """
    if has_extension:
        from .run_widget import RunWidget

        return RunWidget(summary=summary)
    if _takes_script():
        try:
            from .run_anywidget import RunAnyWidget, is_built
        except ImportError:  # the optional dependency is not installed
            return None
        return RunAnyWidget(summary) if is_built() else None
    return None


def _takes_script() -> bool:
    """Return whether the front end cannot have our extension, but draws widgets that bring their script."""
    shell = get_ipython()
    return _COLAB_MODULE in sys.modules or (shell is not None and _VSCODE_VARIABLE in shell.user_ns)
