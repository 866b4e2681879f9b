"""Let litData's streams on an engine read all rows.

With a process group, each stream reads only its process's part of the rows. A run shards batches itself, so that most rows would be lost.
While a cell runs, a stream sees one process, as in the notebook.
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
        except (ImportError, AttributeError):  # the cell has only mentioned it, or it is another version
            yield
            return
        with patched(environment, "detect", classmethod(lambda cls: cls(world_size=1, global_rank=0, num_nodes=1))):
            yield


INTEGRATION = LitData()
