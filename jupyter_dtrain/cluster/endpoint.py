"""Where the ranks of one generation meet; those of one host by a file in a folder that only their user can enter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any


class Endpoint(ABC):
    """Where the ranks of one generation meet: sent to them with their task.

    Attributes
    ----------
    spans_hosts : bool
        Whether they may be on several hosts: then they connect by the network alone, so that sums are the same wherever each of them is.
    """

    spans_hosts = False

    @abstractmethod
    def open(self, world_size: int, limit: timedelta) -> Any:
        """Return the ``torch.distributed.Store`` by which they meet, in which keys are waited for as long as `limit`."""


@dataclass(frozen=True)
class FileEndpoint(Endpoint):
    """A file that no other generation has met by. It need not be there: it is as soon as a rank opens it."""

    path: Path

    def open(self, world_size: int, limit: timedelta) -> Any:
        """Return PyTorch's store by file."""
        from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in torch's own list of exports

        store = FileStore(str(self.path), world_size)
        store.set_timeout(limit)
        return store
