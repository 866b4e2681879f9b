"""litData's streams on an engine: each reads all of them.

They look for a process group and read a part of the rows for each process in it. A run divides batches by itself, so that a part of a part
would be left and the rest lost. While a cell runs, a stream sees one process, as in the notebook.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..system.patches import patched
from .base import Integration, RunScope


class LitData(Integration):
    """Streams see one process."""

    objects_go_along = True

    @contextmanager
    def run_scope(self, run: RunScope) -> Iterator[None]:
        """Let streams see one process until the end of the ``with`` block."""
        del run
        try:
            environment: Any = importlib.import_module("litdata.utilities.env")._DistributedEnv
        except (ImportError, AttributeError):  # it was only named, or is another version
            yield
            return
        with patched(environment, "detect", classmethod(lambda cls: cls(world_size=1, global_rank=0, num_nodes=1))):
            yield


INTEGRATION = LitData()
