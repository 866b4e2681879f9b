"""What rank 0 says of each folder that the cell makes: that it is made, or why not.

The other ranks make none, and a look at the disk would not tell them how rank 0 has fared: it may not have come there yet, or may have
removed the folder again. So it says so in the store of their group. It never waits for the others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from ...system.patches import patched
from .asked_paths import asked_path, is_within_open_folder


class FolderChannel:
    """One rank's part in it, for the time of a run.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks.
    topic : str
        The same on all ranks, and another in each run.
    """

    def __init__(self, store: Store, topic: str) -> None:
        self._store, self._topic = store, topic
        self._times: Counter[str] = Counter()  # that the cell has made each folder, or tried to
        self._process = os.getpid()

    def topic_of(self, path: str) -> str:
        """Return what the next word on the folder `path` is said under."""
        self._times[path] += 1
        return f"{self._topic}/{self._times[path]}/{path}"

    def heard(self, topic: str, path: str) -> int | None:
        """Return the number of the error that rank 0 has met, 0 for none; ``None`` while it has said nothing."""
        if os.getpid() != self._process:  # a loader's worker process has no part in the store, and looks at the disk
            return 0 if Path(path).is_dir() else None
        return int(self._store.get(topic)) if self._store.check([topic]) else None

    @contextmanager
    def reported(self, folder: Path) -> Iterator[None]:
        """Say, on rank 0, how it fares with the folders that the cell makes in `folder`, until the end of the ``with`` block."""
        with patched(os, "mkdir", self._telling(os.mkdir, f"{folder.resolve()}{os.sep}")):
            yield

    def _telling(self, original: Callable[..., None], folder: str) -> Callable[..., None]:
        @wraps(original)
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            asked = None if is_within_open_folder(kwargs) else asked_path(path)
            if asked is None or not asked.startswith(folder) or os.getpid() != self._process:
                original(path, *args, **kwargs)
                return
            error = 0
            try:
                original(path, *args, **kwargs)
            except OSError as raised:
                error = raised.errno or 0
                raise
            finally:
                self._store.set(self.topic_of(asked), str(error))

        return mkdir
