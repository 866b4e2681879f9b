"""``multiprocessing.Value`` and ``Array``, and their locks: numbers that a process and the workers of its loaders have in common.

Their memory belongs to one process and to those that are forked from it. So another process has some of its own, with the same numbers,
which its workers share; what it makes of them is written into the notebook's own as the cell ends.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from typing import Any

Content = ctypes._SimpleCData | ctypes.Array  # type: ignore[type-arg]
_SYNCHRONIZED = ("Synchronized", "SynchronizedArray", "SynchronizedString")


def is_shared_value(obj: object) -> bool:
    """Return whether `obj` is the numbers of a ``Value`` or an ``Array``, without the lock around them."""
    return isinstance(obj, Content) and "_wrapper" in vars(obj)


def set_bytes(obj: Any, to: bytes) -> None:
    """Let shared numbers be `to`, which ``bytes`` has made of them."""
    ctypes.memmove(ctypes.addressof(obj), to, len(to))


def reduced_shared_value(obj: Any) -> Any:
    """Return how shared numbers, a lock of ``multiprocessing`` or the two together reduce, ``NotImplemented`` for all else.

    Raises
    ------
    TypeError
        It is a lock that is held.
    """
    if is_shared_value(obj):
        kind = type(obj)
        return _made, (kind._type_, obj._length_, bytes(obj)) if isinstance(obj, ctypes.Array) else (kind, None, bytes(obj))
    kind = type(obj)
    if kind.__module__ == "multiprocessing.sharedctypes" and kind.__name__ in _SYNCHRONIZED:
        return _synchronized, (obj.get_obj(), obj.get_lock())
    if kind.__module__ == "multiprocessing.synchronize" and kind.__name__ in ("Lock", "RLock"):
        if not obj.acquire(False):
            raise TypeError("cannot pickle a lock that is held")
        obj.release()
        return _lock, (kind.__name__,)
    return NotImplemented


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
