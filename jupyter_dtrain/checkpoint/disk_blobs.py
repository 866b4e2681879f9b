"""The buffers of a run's checkpoints, in a folder that may be untrusted: see :mod:`..system.confined`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from ..errors import CheckpointError
from ..system.confined import file_below, folder_below, is_file_below, kind_below, make_folder_below, remove_below
from ..transport.base import BlobStore
from ..transport.blob_store import BlobFolder
from .manifest import checksum_of

_HANDLES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


class DiskBlobs:
    """Buffers in a folder below `base`, under the same names as in memory. Symbolic links are not followed."""

    def __init__(self, base: Path, *parts: str) -> None:
        self._base, self._parts = base, parts

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not stored."""
        return [key for key in keys if not is_file_below(self._base, *self._parts, key)]

    def open(self, key: str) -> memoryview:
        """Map a stored buffer privately (writes stay in this process); raise an `OSError` if there is none."""
        with file_below(self._base, *self._parts, key) as handle:
            size = os.fstat(handle).st_size
            if not size:
                return memoryview(bytearray())  # an empty file cannot be mapped
            return torch.from_file(f"{_HANDLES}/{handle}", shared=False, size=size, dtype=torch.uint8).numpy().data

    def write(self, key: str, buffer: memoryview) -> None:
        """Store `buffer` durably, so that it survives a crash of the machine."""
        folder = make_folder_below(self._base, *self._parts)
        remove_below(self._base, *self._parts, key)  # removes anything but a regular file
        BlobFolder(folder).write(key, buffer, durable=True)

    def copy_to(self, blobs: BlobStore, key: str, *, checksum: str, what: str) -> None:
        """Copy a buffer to `blobs`. The checksum is verified on the copy, which nobody else can write.

        Raises
        ------
        CheckpointError
            The checksum differs.
        """
        is_new = bool(blobs.missing([key]))
        try:
            blobs.store(key, self.open(key))
        except FileNotFoundError:
            raise self._damaged(what) from None
        if checksum_of(blobs.open(key)) != checksum:
            if is_new:
                blobs.discard([key])
            raise self._damaged(what)

    def check(self, key: str, *, checksum: str, what: str) -> None:
        """Raise a `CheckpointError` if a buffer has another checksum."""
        with suppress(OSError):
            if checksum_of(self.open(key)) == checksum:
                return
        raise self._damaged(what)

    def trim(self, keep: Iterable[str]) -> None:
        """Remove all buffers except `keep`; of symbolic links, only the links."""
        kept = set(keep)
        if kind_below(self._base, *self._parts) not in (stat.S_IFDIR, None):
            remove_below(self._base, *self._parts)
        with suppress(FileNotFoundError), folder_below(self._base, *self._parts) as folder:
            for name in set(os.listdir(folder)) - kept:  # noqa: PTH208 - of a descriptor
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)

    @staticmethod
    def _damaged(what: str) -> CheckpointError:
        return CheckpointError(f"{what} is damaged: a checksum does not match.")
