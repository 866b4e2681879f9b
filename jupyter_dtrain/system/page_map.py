"""Query Linux for the state of pages of this process's memory.

The kernel gives a process its own copy of a page at the first write to privately mapped memory. So a range without such pages is unchanged
since it was mapped. Linux reports this for each page, which takes milliseconds for 1 GB, and from version 6.7 on for many pages at once,
which takes almost no time. A checksum takes a second. On other systems, and in sandboxes that forbid it, nothing is known.

Names and numbers are those of ``struct pm_scan_arg`` in Linux' ``include/uapi/linux/fs.h``.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PAGEMAP_SCAN = 3 << 30 | 96 << 16 | ord("f") << 8 | 16
PM_SCAN_CHECK_WPASYNC = 1 << 1  # makes it an error if memory is not watched, for example because it was freed
PAGE_IS_WRITTEN, PAGE_IS_FILE, PAGE_IS_PRESENT, PAGE_IS_SWAPPED = (1 << bit for bit in (1, 2, 3, 4))
PAGEMAP = Path("/proc/self/pagemap")


def first_pages(first: int, length: int, *, any_of: int, all_of: int = 0, inverted: int = 0, flags: int = 0) -> tuple[int, int] | None:
    """Return the start and end of the first consecutive pages that match, ``None`` if there are none.

    Parameters
    ----------
    first, length : int
        Address and number of bytes, both multiples of the page size.
    any_of, all_of : int
        Categories of which a page must have one, or all.
    inverted : int
        Categories that a page must not have where the masks ask for them.
    flags : int

    Raises
    ------
    OSError
        This system does not support the query, or the memory is not mapped.
    """
    found = (ctypes.c_uint64 * 3)()  # start, end, categories
    where = (first, first + length, 0, ctypes.addressof(found), 1, 0)
    asked = bytearray(struct.pack("12Q", 96, flags, *where, inverted, all_of, any_of, 0))
    with PAGEMAP.open("rb", buffering=0) as pages:
        number: int = fcntl.ioctl(pages.fileno(), PAGEMAP_SCAN, asked)
    return (found[0], found[1]) if number else None


PRESENT, SWAPPED, OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
_MAPS = Path("/proc/self/maps")


class PrivateMappings:
    """Private mappings of this process, as of the first query."""

    @functools.cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        return private_ranges() if _is_told() else []

    def untouched(self, address: int, num_bytes: int) -> bool:
        """Return whether `num_bytes` at `address` are unwritten since they were mapped; False if unknown."""
        inside = any(begin <= address and address + num_bytes <= end for begin, end in self._ranges)
        return inside and untouched(address, num_bytes)


def private_ranges(*, of_files: bool = True) -> list[tuple[int, int]]:
    """Return start and end of private mappings, merged; without `of_files`, of anonymous ones only."""
    ranges: list[tuple[int, int]] = []
    for begin, end, is_file in _private_mappings():
        if of_files or not is_file:
            if ranges and ranges[-1][1] == begin:
                begin = ranges.pop()[0]
            ranges.append((begin, end))
    return ranges


def is_mapped_file(address: int, num_bytes: int) -> bool:
    """Return whether memory is all of a private mapping of a file, so that pages given back have the file's contents again.

    Alignment does not tell: one in 256 blocks of the heap begins with a page, and shares its last page with others.
    """
    if address % mmap.PAGESIZE or not num_bytes or not _MAPS.exists():
        return False
    end = -(-(address + num_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    return (address, end, True) in _private_mappings()


def _private_mappings() -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each private mapping, and whether it is of a file."""
    for line in _MAPS.read_text().splitlines():
        addresses, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        if permissions.endswith("p"):
            begin, _, end = addresses.partition("-")
            yield int(begin, 16), int(end, 16), inode != "0"


def untouched(address: int, num_bytes: int) -> bool:
    """Return whether privately mapped memory has no page that was copied for this process by a write."""
    first, last = address // mmap.PAGESIZE, (address + num_bytes - 1) // mmap.PAGESIZE
    where = first * mmap.PAGESIZE, (last - first + 1) * mmap.PAGESIZE
    try:
        return first_pages(*where, any_of=PAGE_IS_PRESENT | PAGE_IS_SWAPPED, all_of=PAGE_IS_FILE, inverted=PAGE_IS_FILE) is None
    except OSError:  # an older kernel reports only single pages
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
    """Return whether this system reports page states. It is tried, as on some the file exists but does not tell."""
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
