"""Cache row groups in memory up to a limit of bytes, and read the next ones ahead on a thread.

Each process has its own cache for a data set. It is stored outside of the data set, so it is neither its state nor pickled with it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

Load = Callable[[int], tuple[Any, int]]
"""Reads a row group; returns its contents, and their bytes."""


class GroupCache:
    """Cache of one data set's row groups in this process.

    Parameters
    ----------
    limit : int
        Maximum bytes of cached groups. The groups of the current batch are kept even if they take more.
    expected : callable
        Returns the expected bytes of a group.
    """

    def __init__(self, limit: int, expected: Callable[[int], int]) -> None:
        self._limit, self._expected = limit, expected
        self._groups: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # most recently used last
        self._coming: dict[int, Future[tuple[Any, int]]] = {}
        self._in_use: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self.nbytes = self.most_bytes = 0
        self.num_loaded = self._num_again = 0
        self._loaded: set[int] = set()

    def get(self, groups: Collection[int], load: Load) -> dict[int, Any]:
        """Return row groups; read those that are not cached."""
        with self._lock:
            self._in_use = frozenset(groups)
        return {group: self._get(group, load) for group in groups}

    def read_ahead(self, groups: Iterable[int], load: Load) -> None:
        """Read groups that are not cached on a thread, as far as they fit beside those in use."""
        with self._lock:
            room = self._limit - sum(self._groups[group][1] for group in self._in_use if group in self._groups)
            for group in groups:
                if group in self._groups or group in self._coming:
                    room -= self._expected(group)
                    continue
                room -= self._expected(group)
                if room < 0:
                    return
                self._threads = self._threads or ThreadPoolExecutor(1, "row-groups")
                self._coming[group] = self._threads.submit(self._loaded_ahead, group, load)

    def _loaded_ahead(self, group: int, load: Load) -> tuple[Any, int]:
        try:
            found = self._load(group, load)
            self._put(group, found)
            return found
        finally:
            with self._lock:
                self._coming.pop(group, None)

    def _get(self, group: int, load: Load) -> Any:
        with self._lock:
            if group in self._groups:
                self._groups.move_to_end(group)
                return self._groups[group][0]
            coming = self._coming.get(group)
        if coming is not None:
            try:
                return coming.result()[0]
            except Exception:  # read again below, which raises the error for this caller
                pass
        found = self._load(group, load)
        self._put(group, found)
        return found[0]

    def _load(self, group: int, load: Load) -> tuple[Any, int]:
        with self._lock:
            self._make_room(self._expected(group))
        return load(group)

    def _put(self, group: int, found: tuple[Any, int]) -> None:
        with self._lock:
            if group in self._groups:
                return
            self._make_room(found[1])
            self._groups[group] = found
            self.nbytes += found[1]
            self.most_bytes = max(self.most_bytes, self.nbytes)
            self.num_loaded += 1
            self._num_again += group in self._loaded
            self._loaded.add(group)
            again = self._num_again
        if again == max(64, 8 * len(self._loaded)):
            warnings.warn(
                f"Row groups have been read again {again} times, because rows come in an order for which the cache of {self._limit:,} "
                "bytes is too small. Use `dataset.loader(batch_size=…)` or `sampler=dataset.sampler` instead of `shuffle=True`, "
                "or a larger `cache_bytes`.",
                stacklevel=2,
            )

    def _make_room(self, nbytes: int) -> None:
        for group in list(self._groups):
            if self.nbytes + nbytes <= self._limit:
                return
            if group not in self._in_use:
                self.nbytes -= self._groups.pop(group)[1]


_caches: WeakKeyDictionary[Any, GroupCache] = WeakKeyDictionary()


def cache_of(owner: Any, make: Callable[[], GroupCache]) -> GroupCache:
    """Return the cache of `owner` in this process."""
    cache = _caches.get(owner)
    if cache is None:
        cache = _caches[owner] = make()
    return cache


# A forked worker has no reading thread, and its lock could never be released.
os.register_at_fork(after_in_child=lambda: _caches.clear())
