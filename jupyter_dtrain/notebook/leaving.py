"""Whether the kernel is about to end: a cell that waits for a run that goes on without it then leaves."""

from __future__ import annotations

from IPython.core.getipython import get_ipython


def is_leaving() -> bool:
    """Return whether this kernel has been asked to shut down, which its control thread hears while a cell runs."""
    kernel = getattr(get_ipython(), "kernel", None)
    return getattr(kernel, "_shutdown_message", None) is not None
