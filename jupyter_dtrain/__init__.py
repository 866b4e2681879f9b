"""Run a training cell on every engine of a cluster by adding one line on top of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .api import config, gather, is_main, log, mean, sum  # noqa: A004  # dtrain.sum

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from . import data
    from .checkpoint.load import load_checkpoint
    from .runs.queries import find_run
    from .runs.queries import table_of as runs

__all__ = ["config", "data", "find_run", "gather", "is_main", "load_checkpoint", "log", "mean", "runs", "sum"]
__version__ = "0.1.0"
_ELSEWHERE = {"find_run": "runs.queries", "load_checkpoint": "checkpoint.load"}


def __getattr__(name: str) -> Any:
    """Import heavy modules when they are first used."""
    if name in ("data", "runs"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register ``%%distribute`` and ``%distribute`` in a notebook, and serve its sidebar. Called by ``%load_ext``."""
    from .notebook.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Stop the cluster and remove the magics. Called by ``%unload_ext``."""
    from .notebook.magics import unload

    unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell ``jupyter-builder develop`` the path of the built front end and the name under which it is installed."""
    return [{"src": "labextension", "dest": "jupyter-dtrain"}]
