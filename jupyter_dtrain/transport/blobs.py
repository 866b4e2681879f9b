"""Large buffers, stored once per host under the hash of their bytes.

A buffer is written once into a folder in shared memory and mapped by every engine of the host, privately: a page
is copied when an engine writes to it and shared until then. What is stored already is not written again, so the rerun
of a cell sends only what changed. On a host whose shared memory is too small the folder lies on disk: slower, and the
same otherwise.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ..errors import ClusterError

PART = 8  # of the file system, for buffers that no run uses
SMALLEST = 1 << 16  # bytes; smaller buffers travel inside the message


def key_of(buffer: memoryview) -> str:
    """Return the name under which `buffer` is stored: a hash of its bytes and its length."""
    return f"{hashlib.blake2b(buffer, digest_size=20).hexdigest()}-{buffer.nbytes:x}"


def bytes_of(key: str) -> int:
    """Return the length of the buffer that is stored under `key`."""
    return int(key.rpartition("-")[2], 16)


def write_whole(path: Path, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Write a file of mode 0600 so that it is there as a whole or not at all, with `durable` also after a crash of the machine."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class BlobFolder:
    """A folder of buffers by content.

    Parameters
    ----------
    path : Path
        Made with mode 0700 if it is missing.
    before : Path, optional
        Another folder of the same file system: what lies there is linked from there and not written again.
    """

    def __init__(self, path: Path, before: Path | None = None) -> None:
        self.path, self._before = path, before
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put_all(self, buffers: Sequence[memoryview]) -> list[str]:
        """Store `buffers` and return their keys in order.

        Raises
        ------
        ClusterError
            There is no room for them, even without all others.
        """
        # Hashing and writing release the interpreter's lock, so they run in threads.
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            keys = list(pool.map(key_of, buffers))
            try:
                list(pool.map(self.write, keys, buffers))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self.trim(keep=keys, limit=0)
                self._write_or_say(keys, buffers)
        return keys

    def _write_or_say(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> None:
        try:
            for key, buffer in zip(keys, buffers, strict=True):
                self.write(key, buffer)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            needed = sum({key: buffer.nbytes for key, buffer in zip(keys, buffers, strict=True)}.values())
            raise ClusterError(
                f"{self.path.parent} has no room for the cell's values ({needed / 2**30:.1f} GiB). "
                "Make large data inside the cell, or give the machine (or its container) more shared memory."
            ) from error

    @property
    def limit(self) -> int:
        """Bytes of unused buffers that may stay for reruns: a part of the file system, as memory is dear."""
        return shutil.disk_usage(self.path).total // PART

    def put(self, buffer: memoryview) -> str:
        """Store one buffer and return its key."""
        key = key_of(buffer)
        self.write(key, buffer)
        return key

    def write(self, key: str, buffer: memoryview, *, durable: bool = False) -> None:
        """Store `buffer` under `key`, unless it is there. Readers never see a part of it, with `durable` not even after a crash."""
        target = self.path / key
        try:
            os.utime(target)  # the least recently used go first
        except FileNotFoundError:
            pass
        else:
            return
        if self._before is not None:
            try:
                os.link(self._before / key, target)
            except FileExistsError:  # another process was faster
                return
            except OSError:  # it is not there, or gone meanwhile
                pass
            else:
                return
        write_whole(target, buffer, durable=durable)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not stored."""
        return [key for key in keys if not (self.path / key).exists()]

    def open(self, key: str) -> memoryview:
        """Map a stored buffer. Writes to it are private to the process."""
        path = self.path / key
        size = path.stat().st_size
        if not size:
            return memoryview(bytearray())  # nothing cannot be mapped
        # Python's own mmap would hold a file descriptor for each, and large models have more tensors than processes may have files.
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy().data

    def discard(self, keys: Iterable[str]) -> None:
        """Remove stored buffers. Processes that mapped one keep it."""
        for key in keys:
            (self.path / key).unlink(missing_ok=True)

    def trim(self, *, keep: Iterable[str], limit: int) -> None:
        """Remove the least recently used buffers but `keep` until at most `limit` bytes are stored."""
        kept = set(keep)
        stored = [(entry.name, entry.stat()) for entry in os.scandir(self.path) if not entry.name.startswith(".")]
        total = sum(stat.st_size for _, stat in stored)
        for name, stat in sorted(stored, key=lambda item: item[1].st_mtime_ns):
            if total <= limit:
                return
            if name not in kept:
                self.discard([name])
                total -= stat.st_size
