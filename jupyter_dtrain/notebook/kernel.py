"""Where the cell that is running is: what front ends tell the kernel of it."""

from __future__ import annotations

import os
from pathlib import Path

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from ..runs.record import CellOrigin

NOTEBOOK = "JPY_SESSION_NAME"  # set by Jupyter's server: the notebook's path when its kernel was started


def origin_of_cell(shell: InteractiveShell) -> CellOrigin:
    """Return the id of the cell that is running and the name of its notebook, as far as the front end has said."""
    kernel = getattr(shell, "kernel", None)
    message = kernel.get_parent("shell") if kernel is not None else {}
    cell_id = message.get("metadata", {}).get("cellId")
    notebook = Path(os.environ.get(NOTEBOOK, "")).name
    return CellOrigin(cell_id=cell_id if isinstance(cell_id, str) else None, notebook=notebook if notebook.endswith(".ipynb") else None)


# Whether the kernel is about to end: a cell that waits for a run that goes on without it then leaves.


def is_leaving() -> bool:
    """Return whether this kernel has been asked to shut down, which its control thread hears while a cell runs."""
    kernel = getattr(get_ipython(), "kernel", None)
    return getattr(kernel, "_shutdown_message", None) is not None
