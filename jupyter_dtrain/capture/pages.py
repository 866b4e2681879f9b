"""What Linux tells of pages of this process's memory, from version 6.7 on: which of them are so and so, found in a walk that skips holes.

Names and numbers are those of ``struct pm_scan_arg`` in Linux' ``include/uapi/linux/fs.h``.
"""

from __future__ import annotations

import ctypes
import fcntl
import struct
from pathlib import Path

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
