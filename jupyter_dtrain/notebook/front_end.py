"""What the front end of this kernel can show, as far as a kernel can know: nobody tells it who is there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython

from .kernel import origin_of_cell

if TYPE_CHECKING:
    from .run_widget import RunWidget

_VSCODE_VARIABLE = "__vsc_ipynb_file__"
"""VS Code puts the notebook's path there, in the user's namespace."""
_COLAB_MODULE = "google.colab"
"""Imported in every kernel of Colab."""


def is_notebook() -> bool:
    """Return whether outputs can be written anew in their place; a terminal prints them one below the other."""
    return hasattr(get_ipython(), "kernel")


def writes_over(*, has_extension: bool) -> bool:
    """Return whether the front end shows anew, in its place, what a cell has shown before, as far as can be told.

    `jupyter console` does not: the first state of a run would be all that one ever sees of it. JupyterLab, Notebook and VS Code send the id
    of a cell with each execution, which it has none of. nbclient sends none either, and lacks nothing without states in between.
    """
    shell = get_ipython()
    return has_extension or _takes_script() or (shell is not None and origin_of_cell(shell).cell_id is not None)


def new_run_widget(summary: str, *, has_extension: bool) -> RunWidget | None:
    """Return a widget in the place of the summary with that id, or ``None`` where none could be drawn.

    Parameters
    ----------
    summary : str
        Id of the element that the view hides where it is drawn.
    has_extension : bool
        Whether a front end with our JupyterLab extension is listening. nbclient, papermill and a Lab without it have the summary
        alone, and no state of a widget is kept in their notebooks.
    """
    if has_extension:
        from .run_widget import RunWidget

        return RunWidget(summary=summary)
    if _takes_script():
        try:
            from .run_anywidget import RunAnyWidget, is_built
        except ImportError:  # the extra is not installed
            return None
        return RunAnyWidget(summary) if is_built() else None
    return None


def _takes_script() -> bool:
    """Return whether the front end is one that our extension cannot be in and that draws widgets which bring their script."""
    shell = get_ipython()
    return _COLAB_MODULE in sys.modules or (shell is not None and _VSCODE_VARIABLE in shell.user_ns)
