"""Messages through the store of the group, without collectives, since ranks may be at different places of the cell."""

from __future__ import annotations

import hmac
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

_LOOK, _SELDOM = 0.0003, 0.005  # seconds between checks, at first and at most
_DIGEST = "sha256"
_DIGEST_SIZE = 32  # bytes


def wait_for(store: Store, keys: Sequence[str], *, limit: timedelta, unless: Callable[[], bool] = lambda: False) -> bool:
    """Wait until `store` has all `keys` or `unless` returns true; return whether it has the keys.

    A store's own ``wait`` checks every 10 ms if it is a file, and cannot be interrupted.

    Raises
    ------
    DistStoreError
        The keys were not set within `limit`.
    """
    end, pause = time.monotonic() + limit.total_seconds(), _LOOK
    while not unless():
        if store.check(list(keys)):
            return True
        if time.monotonic() > end:
            raise DistStoreError(f"Waited {limit.total_seconds():g} s for the rendezvous keys {', '.join(keys)}.")
        time.sleep(pause)
        pause = min(pause * 1.1, _SELDOM)
    return False


class StoreChannel:
    """One rank's access to these messages.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks of the run.
    rank, world_size : int
    timeout : timedelta
        Longest wait for a message of another rank.
    key : bytes
        Secret of the ranks, with which they sign objects.
    """

    def __init__(self, store: Store, *, rank: int, world_size: int, timeout: timedelta, key: bytes = b"") -> None:
        self._store, self._rank, self._world_size, self._timeout, self._key = store, rank, world_size, timeout, key
        self._aborted = threading.Event()

    @property
    def world_size(self) -> int:
        """Number of ranks that exchange messages."""
        return self._world_size

    def abort(self) -> None:
        """End every wait, now and later: ranks are lost, and will publish nothing any more. Any thread may call this."""
        self._aborted.set()

    @property
    def is_aborted(self) -> bool:
        """Whether ranks are lost."""
        return self._aborted.is_set()

    def publish(self, topic: str, text: str | bytes) -> None:
        """Publish `text` on `topic`, without waiting for the others."""
        self._store.set(f"{topic}/{self._rank}", text)  # type: ignore[arg-type]  # it takes bytes as well

    def hear(self, topic: str) -> bytes:
        """Wait for rank 0's message on `topic`, and return it."""
        self._wait([f"{topic}/0"])
        return self._store.get(f"{topic}/0")

    def tell_object(self, topic: str, value: Any) -> None:
        """Publish a picklable value on `topic`, without waiting for the others."""
        pickled = pickle.dumps(value)
        self.publish(topic, self._signature(topic, pickled) + pickled)

    def hear_object(self, topic: str) -> Any:
        """Wait for rank 0's object on `topic`, and return it.

        Raises
        ------
        RuntimeError
            The signature is not that of a rank of this run. The object was not unpickled.
        """
        heard = self.hear(topic)
        signature, pickled = heard[:_DIGEST_SIZE], heard[_DIGEST_SIZE:]
        if not hmac.compare_digest(signature, self._signature(topic, pickled)):
            raise RuntimeError(f"What rank 0 wrote on {topic} has a wrong signature: another process can write to the rendezvous.")
        return pickle.loads(pickled)

    def _signature(self, topic: str, data: bytes) -> bytes:
        return hmac.digest(self._key, topic.encode() + b"\0" + data, _DIGEST)

    def words(self, topic: str, *, unless: Callable[[], bool] = lambda: False) -> list[str] | None:
        """Wait for every rank's message on `topic`, and return them; ``None`` if `unless` returns true first.

        Raises
        ------
        DistStoreError
            Ranks are lost, or have published nothing within the channel's timeout.
        """
        keys = [f"{topic}/{rank}" for rank in range(self._world_size)]
        return [self._store.get(key).decode() for key in keys] if self._wait(keys, unless=unless) else None

    def all_here(self, topic: str, limit: timedelta, unless: Callable[[], bool] = lambda: False) -> bool:
        """Return whether all ranks call this within `limit` and before `unless` returns true; all callers get the same answer."""
        self.publish(topic, "")
        end = time.monotonic() + limit.total_seconds()
        there = self.words(topic, unless=lambda: time.monotonic() > end or unless()) is not None
        # The first rank to write decides: another rank may arrive just as this one gives up.
        return bool(self._store.compare_set(f"{topic}/all", "", "yes" if there else "no") == b"yes")

    def _wait(self, keys: list[str], unless: Callable[[], bool] = lambda: False) -> bool:
        def is_over() -> bool:
            if unless():
                return True
            if self.is_aborted:
                raise DistStoreError(f"Ranks are lost, and with them the keys {', '.join(keys)}.")
            return False

        return wait_for(self._store, keys, limit=self._timeout, unless=is_over)
