"""Replicas of a rank's own part of a snapshot on another host, in case its host is lost.

A rank sends them before it reports the snapshot as taken, and a thread of a rank on the next host writes them into that host's snapshot
folder. If that fails, the notebook's process fetches what no other host has (:mod:`....checkpoint.host_snapshots`).
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...system.atomic_files import UNFINISHED
from ...transport.buffer_links import try_link
from ..comm.connecting import Connector
from ..comm.rank_server import exactly

PURPOSE = "copies"
_HEAD = struct.Struct("=HQ")  # sizes of a name and of a file
_NAME = re.compile(r"(\d+\.blobs)/([\w-]+)")
_HAS, _WANTED, _NO_ROOM = b"h", b"w", b"n"
_CHUNK = 1 << 20


class Replicas:
    """Sends a rank's replicas, and receives those of other ranks.

    Parameters
    ----------
    folder : Path
        Snapshot folder, which has this name on each host.
    connector : Connector, optional
        Connects the rank with those of other hosts.
    """

    def __init__(self, folder: Path, connector: Connector | None) -> None:
        self._folder, self._connector = folder, connector
        if connector is not None:
            connector.answer(PURPOSE, self._take)

    def send(self, blobs: Path, keys: Sequence[str]) -> float:
        """Send buffers of a snapshot to the next host, if possible; return the seconds that this took."""
        rank = None if self._connector is None or not keys else self._connector.neighbour()
        if rank is None or self._connector is None:
            return 0.0
        began = time.monotonic()
        with suppress(OSError, EOFError), self._connector.call(rank, PURPOSE) as link:
            for key in keys:
                with (blobs / key).open("rb") as file:
                    self._send(link, f"{blobs.name}/{key}".encode(), file.fileno())
        return time.monotonic() - began

    @staticmethod
    def _send(link: socket.socket, name: bytes, file: int) -> None:
        size = os.fstat(file).st_size
        link.sendall(_HEAD.pack(len(name), size) + name)
        answer = exactly(link, 1)
        if answer == _WANTED:
            done = 0
            while done < size:
                done += os.sendfile(link.fileno(), file, done, size - done)
            answer = exactly(link, 1)
        if answer != _HAS:
            raise OSError("the next host has no room")

    # -- replicas of other ranks -------------------------------------------------------------------------------------

    def _take(self, link: socket.socket) -> None:
        while True:
            length, size = _HEAD.unpack(exactly(link, _HEAD.size))
            found = _NAME.fullmatch(exactly(link, length).decode())
            if found is None:
                return
            self._take_one(link, self._folder / found[1] / found[2], size)

    def _take_one(self, link: socket.socket, path: Path, size: int) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() or any(try_link(other / path.name, path) for other in self._folder.glob("*.blobs") if other != path.parent):
            link.sendall(_HAS)
            return
        aside = path.with_name(f"{UNFINISHED}copy-{path.name}")
        try:
            with aside.open("wb") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, max(size, 1))
                except OSError:
                    aside.unlink()
                    link.sendall(_NO_ROOM)
                    return
                link.sendall(_WANTED)
                block = memoryview(bytearray(min(size, _CHUNK)))
                while size:
                    count = link.recv_into(block[: min(size, _CHUNK)])
                    if not count:
                        raise EOFError
                    file.write(block[:count])
                    size -= count
            aside.rename(path)
            link.sendall(_HAS)
        finally:
            aside.unlink(missing_ok=True)
