"""Locks, and objects that hold locks (conditions, events, semaphores, queues): recreated in the other process if they are free.

A free lock has no state. A held lock belongs to a thread of this process, which the other process does not have.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

_Lock, _RLock, _Local = type(threading.Lock()), type(threading.RLock()), threading.local


def reduced_lock(obj: Any) -> Any:
    """Return the reduce value of a lock, a `SimpleQueue` or a thread-local, else ``NotImplemented``.

    Raises
    ------
    TypeError
        The lock is held.
    """
    kind = type(obj)
    if kind is _Lock:
        return threading.Lock, () if _is_free(obj) else _refuse()
    if kind is _RLock:
        return threading.RLock, () if _is_free(obj) else _refuse()
    if kind is queue.SimpleQueue:
        return _simple_queue, (_items(obj),)
    if kind is _Local:
        return _local, (dict(vars(obj)),)  # the values of the calling thread
    return NotImplemented


def _is_free(lock: Any) -> bool:
    if getattr(lock, "_is_owned", bool)() or not lock.acquire(blocking=False):  # a reentrant lock tells whether this thread owns it
        return False
    lock.release()
    return True


def _refuse() -> Any:
    raise TypeError("cannot pickle a lock that is held")


def _items(of: queue.SimpleQueue[Any]) -> list[Any]:
    """Return the items of a queue without removing them."""
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
