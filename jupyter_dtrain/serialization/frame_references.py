"""Frames and series of pandas whose memory others refer to: with copy-on-write, a write to one of them must not reach the others.

pandas counts who refers to a block of values, and copies it before a write if there are several. What is sent keeps these counts
(:mod:`..integrations.pandas`). In the place of an object that refers to a block and is not sent, the reader holds a shallow copy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .item_restore import is_frame

_held: list[Any] | None = None


class Referenced:
    """Frames and series with blocks to which objects refer that are not sent; unpickling holds a shallow copy of each."""

    def __init__(self, frames: list[Any]) -> None:
        self.frames = frames

    def __reduce__(self) -> Any:
        return _hold, (self.frames,)


def _hold(frames: list[Any]) -> Referenced:
    if _held is not None:
        _held.extend(frame.copy(deep=False) for frame in frames)
    return Referenced(frames)


@contextmanager
def references_held() -> Iterator[None]:
    """Hold these copies until the end of the ``with`` block; outside of one there are none."""
    global _held
    _held = []
    try:
        yield
    finally:
        _held = None


def referenced(objects: Iterable[object]) -> list[Referenced]:
    """Return those of `objects`, which are sent, to whose memory others refer, as one object to send, if there are any."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not _copies_on_write(pandas):
        return []
    sent = list(objects)
    ids = {id(obj) for obj in sent}
    found = [obj for obj in sent if is_frame(obj) and not ids.issuperset(map(id, _referring_to(obj)))]
    return [Referenced(found)] if found else []


def _copies_on_write(pandas: Any) -> bool:
    return int(pandas.__version__.partition(".")[0]) >= 3 or pandas.options.mode.copy_on_write is True


def _referring_to(frame: Any) -> Iterator[Any]:
    """Yield the blocks and indexes that refer to the memory of a frame's or series' blocks, its own included."""
    for block in frame._mgr.blocks:
        for reference in block.refs.referenced_blocks:
            if (found := reference()) is not None:
                yield found
