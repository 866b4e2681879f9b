"""Where the ranks of one host meet: a file in a folder that only their user can enter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from .base import Endpoint


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
