"""``multiprocessing.Value`` and ``Array`` and their locks: numbers that a process shares with its loader workers.

Only a process and its forked children share their memory. Another process gets memory of its own with the same numbers, which its workers
share. Its changes are written into the notebook's objects at the cell's end.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from typing import Any

Content = ctypes._SimpleCData | ctypes.Array  # type: ignore[type-arg]
_SYNCHRONIZED = ("Synchronized", "SynchronizedArray", "SynchronizedString")


def is_shared_value(obj: object) -> bool:
    """Return whether `obj` is the ctypes object of a ``Value`` or ``Array``, without the lock around it."""
    return isinstance(obj, Content) and "_wrapper" in vars(obj)


def content_of(obj: object) -> Any | None:
    """Return the ctypes object of a ``Value`` or ``Array``, with or without a lock around it; ``None`` for all else."""
    if is_shared_value(obj):
        return obj
    return obj.get_obj() if _is_synchronized(obj) else None  # type: ignore[attr-defined]


def set_bytes(obj: Any, to: bytes) -> None:
    """Set shared numbers from bytes."""
    ctypes.memmove(ctypes.addressof(obj), to, len(to))


def reduced_shared_value(obj: Any) -> Any:
    """Return the reduce value of shared numbers, a ``multiprocessing`` lock, or both together; ``NotImplemented`` for all else.

    Raises
    ------
    TypeError
        The lock is held.
    """
    if is_shared_value(obj):
        kind = type(obj)
        return _made, (kind._type_, obj._length_, bytes(obj)) if isinstance(obj, ctypes.Array) else (kind, None, bytes(obj))
    if _is_synchronized(obj):
        return _synchronized, (obj.get_obj(), obj.get_lock())
    kind = type(obj)
    if kind.__module__ == "multiprocessing.synchronize" and kind.__name__ in ("Lock", "RLock"):
        if not obj.acquire(False):
            raise TypeError("cannot pickle a lock that is held")
        obj.release()
        return _lock, (kind.__name__,)
    return NotImplemented


def _is_synchronized(obj: object) -> bool:
    kind = type(obj)
    return kind.__module__ == "multiprocessing.sharedctypes" and kind.__name__ in _SYNCHRONIZED


def _made(kind: Any, length: int | None, content: bytes) -> Any:
    from multiprocessing.sharedctypes import RawArray, RawValue

    made = RawValue(kind) if length is None else RawArray(kind, length)
    set_bytes(made, content)
    return made


def _synchronized(content: Any, lock: Any) -> Any:
    from multiprocessing.sharedctypes import synchronized

    return synchronized(content, lock)


def _lock(name: str) -> Any:
    return getattr(multiprocessing, name)()
