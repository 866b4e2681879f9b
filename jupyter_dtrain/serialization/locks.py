"""Locks, and what holds some (conditions, events, semaphores, queues): made anew in the other process if they are free.

A lock that nobody holds has no state. One that is held belongs to a thread of this process, and to nobody there.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

_Lock, _RLock, _Local = type(threading.Lock()), type(threading.RLock()), threading.local


def reduced_lock(obj: Any) -> Any:
    """Return how a lock, a queue written in C or what a thread keeps for itself reduces.

    Raises
    ------
    TypeError
        It is a lock that is held.
    """
    kind = type(obj)
    if kind is _Lock:
        return threading.Lock, () if _is_free(obj) else _refuse()
    if kind is _RLock:
        return threading.RLock, () if _is_free(obj) else _refuse()
    if kind is queue.SimpleQueue:
        return _simple_queue, (_items(obj),)
    if kind is _Local:
        return _local, (dict(vars(obj)),)  # what the thread that asks has kept
    return NotImplemented


def _is_free(lock: Any) -> bool:
    if getattr(lock, "_is_owned", bool)() or not lock.acquire(blocking=False):  # a lock that may be taken twice says whose it is
        return False
    lock.release()
    return True


def _refuse() -> Any:
    raise TypeError("cannot pickle a lock that is held")


def _items(of: queue.SimpleQueue[Any]) -> list[Any]:
    """Return what is in a queue, and leave it there."""
    items: list[Any] = []
    while not of.empty():
        items.append(of.get_nowait())
    for item in items:
        of.put(item)
    return items


def _simple_queue(items: list[Any]) -> queue.SimpleQueue[Any]:
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in items:
        made.put(item)
    return made


def _local(values: dict[str, Any]) -> threading.local:
    made = threading.local()
    vars(made).update(values)
    return made
