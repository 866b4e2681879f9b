"""Detect whether memory was written to since it began to be watched, without reading it.

Linux can track the first write to a page (``userfaultfd`` with asynchronous write protection) and list the written pages
(``PAGEMAP_SCAN``), from version 6.7 on. A query takes less than a millisecond for 1 GB, where a comparison takes hundreds; the first write
to a watched page takes half a microsecond more. On other systems, and in sandboxes that forbid it, nothing is known.

The pages at the ends of a range may also hold other data, which is written to all the time. So only complete pages of a range are watched,
and the bytes before and after them are copied for comparison.

Only private memory is watched: other processes can write to shared memory and to files, which is not tracked. Writes of a device to memory
pinned with ``cudaHostRegister`` are not tracked either; memory that PyTorch pins is not private in this sense.

Names and numbers are those of Linux' ``include/uapi/linux/userfaultfd.h``.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
import platform
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

from .page_map import PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PAGE_IS_WRITTEN, PM_SCAN_CHECK_WPASYNC, Range, first_pages, private_ranges

SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
UFFD_USER_MODE_ONLY = 1  # needs no privileges
UFFD_API = 0xAA
FEATURES = 1 << 13 | 1 << 15  # UFFD_FEATURE_WP_UNPOPULATED, UFFD_FEATURE_WP_ASYNC
UFFDIO_REGISTER_MODE_WP = 1 << 1
UFFDIO_WRITEPROTECT_MODE_WP = 1


def _request(direction: int, kind: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | kind << 8 | number


UFFDIO_API = _request(3, UFFD_API, 0x3F, 24)
UFFDIO_REGISTER = _request(3, UFFD_API, 0x00, 32)
UFFDIO_UNREGISTER = _request(2, UFFD_API, 0x01, 16)
UFFDIO_WRITEPROTECT = _request(3, UFFD_API, 0x06, 24)


class Watch:
    """Watch a range of memory for writes since :meth:`over` was called.

    Linux keeps one flag per page. So before the flags of a range are reset, all other watches query theirs.
    """

    _all: ClassVar[WeakSet[Watch]] = WeakSet()

    def __init__(self, range_: Range) -> None:
        self._range, self._ends = _pages(*range_)
        self._bytes_at_ends: list[bytes] = []
        self._is_watched = False

    @classmethod
    def over(cls, ranges: Sequence[Range]) -> list[Watch]:
        """Return watches of `ranges` that begin now."""
        watches = [cls(range_) for range_ in ranges]
        descriptor = _descriptor()
        if watches and descriptor is not None:
            for watch in cls._all:
                watch.is_unwritten()
            own = private_ranges(of_files=False)
            for watch in watches:
                watch._begin(descriptor, own)
            cls._all.update(watches)
        return watches

    def _begin(self, descriptor: int, own: list[Range]) -> None:
        first, length = self._range
        if length > 0 and any(begin <= first and first + length <= end for begin, end in own):
            with suppress(OSError):  # this range stays unwatched
                _ask(descriptor, UFFDIO_REGISTER, "4Q", first, length, UFFDIO_REGISTER_MODE_WP, 0)
                _ask(descriptor, UFFDIO_WRITEPROTECT, "3Q", first, length, UFFDIO_WRITEPROTECT_MODE_WP)
                self._bytes_at_ends = _bytes_of(self._ends)
                self._is_watched = True

    def is_unwritten(self) -> bool:
        """Return whether nothing was written to the range; False if unknown, and for good once it was False."""
        try:
            self._is_watched = (
                self._is_watched
                and _descriptor() is not None
                and not _has_notes(*self._range)
                and self._bytes_at_ends == _bytes_of(self._ends)
            )
        except OSError:  # the memory was freed meanwhile
            self._is_watched = False
        return self._is_watched

    def end(self) -> None:
        """Stop watching, so that writes are no longer slowed down."""
        descriptor = _descriptor()
        if descriptor is not None:
            with suppress(OSError):  # the memory was freed meanwhile
                _ask(descriptor, UFFDIO_UNREGISTER, "2Q", *self._range)


def _has_notes(first: int, length: int) -> bool:
    """Return whether any watched page was written to or released, or is not watched any more."""
    as_they_were = first_pages(
        first,
        length,
        any_of=PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        all_of=PAGE_IS_WRITTEN,
        inverted=PAGE_IS_WRITTEN,
        flags=PM_SCAN_CHECK_WPASYNC,
    )
    return as_they_were != (first, first + length)


def _pages(address: int, num_bytes: int) -> tuple[Range, list[Range]]:
    """Return the complete pages of a range (with length 0 if there are none), and the parts before and after them."""
    end = address + num_bytes
    first, last = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last <= first:
        return (address, 0), [(address, num_bytes)]
    return (first, last - first), [(address, first - address), (last, end - last)]


def _bytes_of(ranges: Sequence[Range]) -> list[bytes]:
    """Return the bytes of ranges; raise an `OSError` for unmapped memory."""
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        return [os.pread(memory.fileno(), length, first) for first, length in ranges]


def _descriptor() -> int | None:
    """Return this process's userfaultfd, which is kept; one inherited by a fork refers to the parent."""
    return _descriptor_of(os.getpid())


@functools.cache
def _descriptor_of(_: int) -> int | None:
    number = SYS_USERFAULTFD.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return None
    descriptor: int = ctypes.CDLL(None).syscall(number, os.O_CLOEXEC | UFFD_USER_MODE_ONLY)
    if descriptor < 0:
        return None
    try:
        _ask(descriptor, UFFDIO_API, "3Q", UFFD_API, FEATURES, 0)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _ask(descriptor: int, request: int, layout: str, *values: int) -> int:
    """Return the result of an ``ioctl`` with integers as its argument."""
    answer: int = fcntl.ioctl(descriptor, request, bytearray(struct.pack(layout, *values)))
    return answer
