"""Return the recorded runs of a folder as a pandas DataFrame, a row each, the oldest first.

Columns are what is known of each run, its hyperparameters, and the last value of each of its curves; a hyperparameter that is called as
another column is has ``config.`` before its name. `find_run` has more of one run, and needs no pandas.

Parameters
----------
folder : path, optional
    Where runs are recorded; by default ``dtrain-runs`` in the working directory, which is beside the notebook.

Raises
------
UsageError
    pandas is not installed.

Examples
--------
``jupyter_dtrain.runs().sort_values("val_loss")[["name", "optimizer.lr", "val_loss"]]``
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _Runs(ModuleType):
    """The package itself, made callable: a user writes ``jupyter_dtrain.runs()``."""

    def __call__(self, folder: str | Path | None = None) -> Any:
        from .queries import table_of  # imported at the first call

        return table_of(folder)


sys.modules[__name__].__class__ = _Runs
