"""Whether memory has been written to, without reading it.

The kernel gives a process a page of its own when it first writes to memory that is mapped privately. So a range without such pages is as
it was mapped, and one that has none later either was not written to in between. Linux tells this of each page, which takes milliseconds
for 1 GB, and in newer versions of many at once (:mod:`.pages`), which takes none. A checksum takes a second. Elsewhere, and in sandboxes
that do not tell, nothing is known.
"""

from __future__ import annotations

import functools
import mmap
import tempfile
from pathlib import Path

import numpy as np

from .pages import PAGE_IS_FILE, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGEMAP, first_pages

PRESENT, SWAPPED, OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
_MAPS = Path("/proc/self/maps")


class PrivateMappings:
    """The memory of this process that is mapped privately, as it is when it is first asked about."""

    @functools.cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        return private_ranges() if _is_told() else []

    def untouched(self, address: int, num_bytes: int) -> bool:
        """Return whether nothing has been written to `num_bytes` at `address` since they were mapped; False where that is not known."""
        inside = any(begin <= address and address + num_bytes <= end for begin, end in self._ranges)
        return inside and untouched(address, num_bytes)


def private_ranges(*, of_files: bool = True) -> list[tuple[int, int]]:
    """Return where the memory begins and ends that is mapped for this process alone, without `of_files` only what is of no file."""
    ranges: list[tuple[int, int]] = []
    for line in _MAPS.read_text().splitlines():
        addresses, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        if permissions.endswith("p") and (of_files or inode == "0"):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if ranges and ranges[-1][1] == begin:
                begin = ranges.pop()[0]
            ranges.append((begin, end))
    return ranges


def untouched(address: int, num_bytes: int) -> bool:
    """Return whether privately mapped memory has no page that is this process's own."""
    first, last = address // mmap.PAGESIZE, (address + num_bytes - 1) // mmap.PAGESIZE
    where = first * mmap.PAGESIZE, (last - first + 1) * mmap.PAGESIZE
    try:
        return first_pages(*where, any_of=PAGE_IS_PRESENT | PAGE_IS_SWAPPED, all_of=PAGE_IS_FILE, inverted=PAGE_IS_FILE) is None
    except OSError:  # it tells of single pages only
        return _untouched_one_by_one(first, last)


def _untouched_one_by_one(first: int, last: int) -> bool:
    with PAGEMAP.open("rb", buffering=0) as file:
        file.seek(8 * first)
        pages = np.frombuffer(file.read(8 * (last - first + 1)), np.uint64)
    if len(pages) < last - first + 1:
        return False
    own = (pages & SWAPPED != 0) | ((pages & PRESENT != 0) & (pages & OF_FILE == 0))
    return not own.any()


@functools.cache
def _is_told() -> bool:
    """Return whether this system tells of pages: tried, because some only have the file."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(2 * mmap.PAGESIZE))
            file.flush()
            with mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE, access=mmap.ACCESS_COPY) as mapped:
                memory = np.frombuffer(mapped, np.uint8)
                address = memory.ctypes.data
                before = memory.sum() == 0 and untouched(address, memory.nbytes)
                np.frombuffer(mapped, np.uint8)[mmap.PAGESIZE] = 1
                after = untouched(address, memory.nbytes)
                del memory
    except (OSError, ValueError):
        return False
    return bool(before) and not after
