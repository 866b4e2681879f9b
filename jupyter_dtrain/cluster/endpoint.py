"""Rendezvous of the ranks of one generation; on one host through a file in a folder that only the user can enter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any


class Endpoint(ABC):
    """Rendezvous of the ranks of one generation, which is sent to them with their task.

    Attributes
    ----------
    spans_hosts : bool
        Whether ranks may be on several hosts. They then communicate by network only, so that sums do not depend on their placement.
    """

    spans_hosts = False

    @abstractmethod
    def open(self, world_size: int, limit: timedelta) -> Any:
        """Return the ``torch.distributed.Store`` of the rendezvous, with `limit` as its timeout."""


@dataclass(frozen=True)
class FileEndpoint(Endpoint):
    """A file that no other generation uses. The first rank that opens it creates it."""

    path: Path

    def open(self, world_size: int, limit: timedelta) -> Any:
        """Return a `FileStore`."""
        from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in torch's own list of exports

        store = FileStore(str(self.path), world_size)
        store.set_timeout(limit)
        return store
