"""What ranks tell each other through the store of their group: no collective, as they may be at different places of the cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

_SLICE = timedelta(milliseconds=100)  # of a wait, after which an interrupt gets its turn


class Talk:
    """One rank's part in it.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks of the run.
    rank, world_size : int
    timeout : timedelta
        How long a rank waits for the others' words.
    """

    def __init__(self, store: Store, *, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._world_size, self._timeout = store, rank, world_size, timeout

    def tell(self, topic: str, text: str | bytes) -> None:
        """Say something on `topic`, without waiting for the others."""
        self._store.set(f"{topic}/{self._rank}", text)  # type: ignore[arg-type]  # it takes bytes as well

    def hear(self, topic: str) -> bytes:
        """Return what rank 0 says on `topic`; waits for it."""
        self._wait([f"{topic}/0"])
        return self._store.get(f"{topic}/0")

    def words(self, topic: str, *, unless: Callable[[], bool] = lambda: False) -> list[str] | None:
        """Return what each rank says on `topic`; waits for all of them, or until `unless` is true, which is answered by ``None``."""
        keys = [f"{topic}/{rank}" for rank in range(self._world_size)]
        return [self._store.get(key).decode() for key in keys] if self._wait(keys, unless=unless) else None

    def all_here(self, topic: str, limit: timedelta, unless: Callable[[], bool] = lambda: False) -> bool:
        """Return whether all ranks call this within `limit` and before `unless` is true, the same answer on all that do."""
        self.tell(topic, "")
        end = time.monotonic() + limit.total_seconds()
        there = self.words(topic, unless=lambda: time.monotonic() > end or unless()) is not None
        # Who comes first decides: another may come just when this one gives up.
        return bool(self._store.compare_set(f"{topic}/all", "", "yes" if there else "no") == b"yes")

    def _wait(self, keys: list[str], unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all `keys` are there, or `unless` is true; return whether they are."""
        end = time.monotonic() + self._timeout.total_seconds()
        while not unless():
            try:
                self._store.wait(keys, _SLICE)
                return True
            except DistStoreError:
                if time.monotonic() > end:
                    raise
        return False
