"""What Linux tells of pages of this process's memory: which pages are so and so, and what was written to.

The kernel gives a process a page of its own when it first writes to memory that is mapped privately. So a range without such pages is as
it was mapped, and one that has none later either was not written to in between. Linux tells this of each page, which takes milliseconds
for 1 GB, and from version 6.7 on of many at once, which takes none. A checksum takes a second. Elsewhere, and in
sandboxes that do not tell, nothing is known.

Names and numbers are those of ``struct pm_scan_arg`` in Linux' ``include/uapi/linux/fs.h``.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import struct
import tempfile
from pathlib import Path

import numpy as np

PAGEMAP_SCAN = 3 << 30 | 96 << 16 | ord("f") << 8 | 16
PM_SCAN_CHECK_WPASYNC = 1 << 1  # an error for what is not watched, as memory that was freed meanwhile
PAGE_IS_WRITTEN, PAGE_IS_FILE, PAGE_IS_PRESENT, PAGE_IS_SWAPPED = (1 << bit for bit in (1, 2, 3, 4))
PAGEMAP = Path("/proc/self/pagemap")


def first_pages(first: int, length: int, *, any_of: int, all_of: int = 0, inverted: int = 0, flags: int = 0) -> tuple[int, int] | None:
    """Return where the first pages that are so and follow each other begin and end, ``None`` if there are none.

    Parameters
    ----------
    first, length : int
        An address and a number of bytes, of whole pages.
    any_of, all_of : int
        Categories of which a page has to be of one, or of all.
    inverted : int
        Categories of which a page counts where it is not of them.
    flags : int

    Raises
    ------
    OSError
        This system does not tell, or there is no such memory.
    """
    found = (ctypes.c_uint64 * 3)()  # beginning, end, categories
    where = (first, first + length, 0, ctypes.addressof(found), 1, 0)
    asked = bytearray(struct.pack("12Q", 96, flags, *where, inverted, all_of, any_of, 0))
    with PAGEMAP.open("rb", buffering=0) as pages:
        number: int = fcntl.ioctl(pages.fileno(), PAGEMAP_SCAN, asked)
    return (found[0], found[1]) if number else None


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


Range = tuple[int, int]  # an address and a number of bytes
