"""Large buffers, stored once per host under a hash of their bytes.

A buffer is written once into a folder in shared memory. Every engine of the host maps it privately: pages are shared until an engine
writes to them. A stored buffer is not written again, so rerunning a cell sends only what changed. If shared memory is too small, the
folder lies on disk; a single buffer that finds no room is written to disk, with a link to it from the folder.

The hash is fast (xxHash) and not cryptographic: whoever can write into the folder can replace buffers anyway. Checkpoints on disk have
cryptographic checksums (:mod:`..checkpoint.manifest`). Large buffers that only one process has can be stored unhashed (:mod:`.unhashed`).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import xxhash

from ..errors import ClusterError
from ..system.atomic_files import write_whole
from ..system.resources import OVERFLOW, size_text
from .base import BlobStore, OnProgress
from .buffer_links import Overflow, try_link
from .sending import INTERVAL
from .unhashed import UnhashedBuffers, place_of

PART = 8  # divisor of the file system's size: room for buffers that no run uses
SMALLEST = 1 << 16  # bytes; smaller buffers are sent inside the message
HASHED_AT_ONCE = 1 << 20  # bytes of a file that are hashed at a time
HASHED = 1 << 24  # bytes; larger buffers that only one process has are not hashed


def key_of(buffer: memoryview) -> str:
    """Return the name under which `buffer` is stored: a hash of its bytes, and its length."""
    return f"{xxhash.xxh3_128_hexdigest(buffer)}-{buffer.nbytes:x}"


def bytes_of(key: str) -> int:
    """Return the length of the buffer with this name."""
    return int(key.rpartition("-")[2], 16)


class BlobFolder(BlobStore):
    """A folder of buffers, named by content.

    Parameters
    ----------
    path : Path
        Created with mode 0700 if it is missing.
    others : sequence of Path
        Other folders of the same file system: buffers in these are hard-linked instead of written again.
    hashed : int, optional
        :meth:`put_all` gives buffers of more bytes a unique name instead of a hash; by default all are hashed.
    in_place : bool
        :meth:`put_all` works in the calling thread only, not in several.
    watched : bool
        Watch the memory of unhashed buffers for writes, so that unwritten ones need no comparison. The stored copy of a changed buffer is
        then overwritten, as nothing refers to it any more. Without this, earlier parcels may still refer to it.
    """

    def __init__(
        self, path: Path, others: Sequence[Path] = (), *, hashed: int | None = None, in_place: bool = False, watched: bool = False
    ) -> None:
        self.path, self._others, self._hashed, self._in_place = path, tuple(others), hashed, in_place
        self._overflow = Overflow(path)
        self._unhashed = UnhashedBuffers(self.open, watched=watched, outdate=self._outdate)
        self._outdated: dict[str, str] = {}  # name of a buffer → name of its outdated copy, which it shall overwrite
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def address(self) -> Path:
        """The folder."""
        return self.path

    def put_all(self, buffers: Sequence[memoryview], on_progress: OnProgress | None = None) -> list[str]:
        """Store `buffers` in parallel and return their keys in order: see :meth:`.base.BlobStore.put_all`."""
        with self._mapping() as mapped:
            large = [buffer for buffer in buffers if self._hashed is not None and buffer.nbytes > self._hashed]
            own = self._unhashed.names(large, mapped)
            hashes = mapped(key_of, [buffer for buffer in buffers if place_of(buffer) not in own])
            keys = [own.get(place_of(buffer)) or next(hashes) for buffer in buffers]
            try:
                if on_progress is None:
                    list(mapped(self.write, keys, buffers))
                else:
                    self._write_telling(keys, buffers, on_progress)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self.trim(keep=keys, limit=0)
                self._write_or_say(keys, buffers)
        return keys

    def _write_telling(self, keys: Sequence[str], buffers: Sequence[memoryview], on_progress: OnProgress) -> None:
        total = sum(map(bytes_of, self.missing(set(keys))))
        written: list[int] = []
        with _pool() as pool:
            writing = [pool.submit(self.write, key, buffer, on_written=written.append) for key, buffer in zip(keys, buffers, strict=True)]
            while (
                total and wait(writing, INTERVAL, FIRST_EXCEPTION).not_done and not any(one.done() and one.exception() for one in writing)
            ):
                on_progress(min(sum(written), total - 1), total)
            for one in writing:
                one.result()
        on_progress(total, total)

    @contextmanager
    def _mapping(self) -> Iterator[Any]:
        """Yield a `map` function: in threads, as hashing and writing release the GIL, or the plain one."""
        if self._in_place:
            yield map
        else:
            with _pool() as pool:
                yield pool.map

    def _outdate(self, name: str, *, by: str) -> None:
        """Let the buffer `by` overwrite the outdated buffer `name`; remove that one at once if it lies on the overflow disk."""
        if (self.path / name).is_symlink():
            self.discard([name])
        else:
            self._outdated[by] = name

    def _write_or_say(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> None:
        try:
            for key, buffer in zip(keys, buffers, strict=True):
                self.store(key, buffer)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            needed = sum({key: buffer.nbytes for key, buffer in zip(keys, buffers, strict=True)}.values())
            raise ClusterError(
                f"{self.path.parent} has no room for the cell's values ({size_text(needed)}). "
                "Make large data inside the cell, or give the machine (or its container) more shared memory."
            ) from error

    @property
    def limit(self) -> int:
        """Bytes of unused buffers that may be kept for reruns: a part of the file system, as it is memory."""
        return shutil.disk_usage(self.path).total // PART

    def put(self, buffer: memoryview) -> str:
        """Store one buffer and return its key."""
        key = key_of(buffer)
        self.store(key, buffer)
        return key

    def store(self, key: str, buffer: memoryview) -> None:
        """Store `buffer` like :meth:`write`, or on the overflow disk if the folder is full and there is such a disk."""
        try:
            self.write(key, buffer)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._overflow.is_there:
                raise
            self._overflow.write(key, buffer)

    def write(self, key: str, buffer: memoryview, *, durable: bool = False, on_written: Callable[[int], None] = lambda _: None) -> None:
        """Store `buffer` under `key`, unless it is there. Readers never see a part of it; with `durable` not even after a crash."""
        target = self.path / key
        try:
            os.utime(target)  # `trim` removes the least recently used first
        except FileNotFoundError:
            pass
        else:
            return
        if any(try_link(other / key, target) for other in self._others):
            return
        outdated = self._outdated.pop(key, None)
        write_whole(target, buffer, durable=durable, on_written=on_written, over=None if outdated is None else self.path / outdated)

    def take(self, file: Path) -> str:
        """Move a file of the same file system, to which nobody writes any more, into the folder; return its key."""
        hashed = xxhash.xxh3_128()
        block = memoryview(bytearray(HASHED_AT_ONCE))
        with file.open("rb", buffering=0) as opened:
            while count := opened.readinto(block):
                hashed.update(block[:count])
            key = f"{hashed.hexdigest()}-{opened.tell():x}"
        target = self.path / key
        if target.exists() or any(try_link(other / key, target) for other in self._others):
            file.unlink()
        else:
            file.rename(target)
        return key

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not stored."""
        return [key for key in keys if not (self.path / key).exists()]

    def open(self, key: str) -> memoryview:
        """Map a stored buffer privately: writes stay in this process."""
        path = self.path / key
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            path = self._overflow.file_of(key)
            found = path.lstat()
        size = found.st_size
        if not size:
            return memoryview(bytearray())  # an empty file cannot be mapped
        # Python's mmap keeps a file descriptor for each mapping, and large models have more tensors than a process may open files.
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy().data

    def discard(self, keys: Iterable[str]) -> None:
        """Remove stored buffers. Processes that have mapped one keep it."""
        for key in keys:
            path = self.path / key
            if path.is_symlink():
                with suppress(FileNotFoundError):
                    self._overflow.file_of(key).unlink()
            path.unlink(missing_ok=True)

    def trim(self, *, keep: Iterable[str], limit: int) -> None:
        """Remove the least recently used buffers except `keep` until at most `limit` bytes are stored, and all on the overflow disk."""
        kept = set(keep)
        stored = [entry for entry in os.scandir(self.path) if not entry.name.startswith(".")]
        self.discard(entry.name for entry in stored if entry.is_symlink() and entry.name not in kept)
        stats = {entry.name: entry.stat(follow_symlinks=False) for entry in stored if not entry.is_symlink()}
        total = sum(found.st_size for found in stats.values())
        for name, found in sorted(stats.items(), key=lambda item: item[1].st_mtime_ns):
            if total <= limit:
                return
            if name not in kept:
                self.discard([name])
                total -= found.st_size

    def inherit(self, old: Path) -> None:
        """Take over all buffers of the folder `old`."""
        for entry in old.iterdir():
            if entry.name == OVERFLOW:
                continue
            if entry.is_symlink():
                with suppress(FileNotFoundError):
                    self._overflow.take(Overflow(old).file_of(entry.name))
            else:
                shutil.move(entry, self.path)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
