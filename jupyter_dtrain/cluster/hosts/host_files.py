"""The folders of buffers of a cluster over several hosts: each host has its own, and files are sent between them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import ClusterError
from ..engine_files import EngineFiles
from .remote_host import RemoteHost


class HostFiles(EngineFiles):
    """Files in the notebook's folder of buffers, and in those of the other hosts.

    Parameters
    ----------
    folder : Path
        The notebook's.
    hosts : list of RemoteHost
    host_of : callable
        Returns the host of a rank, ``None`` while its engine is not up.
    """

    def __init__(self, folder: Path, hosts: list[RemoteHost], host_of: Callable[[int], RemoteHost | None]) -> None:
        super().__init__(folder)
        self._hosts, self._host_of = hosts, host_of

    def send(self, names: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Send local files to every host that does not have them.

        Raises
        ------
        ClusterError
            A host has no room for them.
        """
        missing = self._missing(names)
        total = sum((self._folder / name).stat().st_size for found in missing.values() for name in found)
        sent = 0

        def count(num_bytes: int) -> None:
            nonlocal sent
            sent += num_bytes
            if on_progress is not None:
                on_progress(sent, total)

        def send(host: RemoteHost) -> None:
            for name in missing.get(host, ()):
                with _mapped(self._folder / name) as data:
                    host.put(name, data, count)
            # The answer comes after all parts: a file that is still missing could not be written.
            if left := host.missing(missing.get(host, ())):
                raise ClusterError(
                    f"{host.name} has no room in shared memory for {len(left)} of the cell's buffers. Enlarge /dev/shm there, or load "
                    "large data inside the cell."
                )

        list(self._on_each(send))

    def spread(self, names: Sequence[str]) -> bool:
        """Copy files that any host has to every host; return whether that succeeded."""
        missing = self._missing(names)
        if self.find(list(dict.fromkeys(name for found in missing.values() for name in found))):
            return False
        self.send(names)
        return True

    def _missing(self, names: Sequence[str]) -> dict[RemoteHost, list[str]]:
        return {host: found for host, found in self._on_each(lambda host: host.missing(names)) if found}

    def journal(self, path: Path, run_id: str) -> Path:
        """Return the path at which rank 0 logs a run's file operations: on its own host if that does not have the notebook's folder."""
        host = self._host_of(0)
        is_there = host is not None and host.facts["shares_folder"] and path.is_relative_to(Path.cwd())
        return path if is_there else self._folder / f".files-{run_id}"

    def fetch(self, names: Sequence[str], rank: int) -> None:
        """Fetch files that the engine of `rank` has written; raise a `ClusterError` if that fails."""
        names = [name for name in names if not (self._folder / name).exists()]
        if not names:
            return
        host = self._host_of(rank)
        if host is None:
            raise ClusterError(f"The engine of rank {rank} has not started.")
        self._fetch(names, host)

    def on_one_host(self, names: Sequence[str], rank: int) -> list[str]:
        """Return those files of the engine of `rank` that no other host has."""
        left = [name for name in names if not (self._folder / name).exists()]
        own = self._host_of(rank)
        start = self._hosts.index(own) + 1 if own is not None else 0
        for host in [*self._hosts[start:], *self._hosts[:start]]:  # the next host has them, if any has
            if host is not own and not host.lost:
                with suppress(ClusterError):
                    left = host.missing(left)
        return left

    def pass_on(self, name: str, *, source: int, target: int) -> None:
        """Copy a file from the engine of rank `source` to the host of rank `target`."""
        there, here = self._host_of(source), self._host_of(target)
        if there is None or here is None or there is here:
            return
        self._fetch([name], there)
        if here.missing([name]):
            with _mapped(self._folder / name) as data:
                here.put(name, data)

    def find(self, names: Sequence[str]) -> list[str]:
        """Fetch files that any host has; return those that none has."""
        left = list(names)
        for host in self._hosts:
            if host.lost:
                continue
            with suppress(ClusterError):
                missing = set(host.missing(left))
                self._fetch([name for name in left if name not in missing], host)
            left = [name for name in left if not (self._folder / name).exists()]
        return left

    def _fetch(self, names: Sequence[str], host: RemoteHost) -> None:
        for name in names:
            path = self._folder / PurePosixPath(name)
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                host.get(name, path)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files from every host; names may be patterns."""
        for host in self._hosts:
            host.tell("remove", names=list(names))

    def keep(self, names: Sequence[str]) -> None:
        """Remove all other buffers on the other hosts."""
        for host in self._hosts:
            if not host.facts["is_notebooks"]:
                host.tell("keep", names=list(names))

    def _on_each(self, action: Callable[[RemoteHost], Any]) -> Iterator[tuple[RemoteHost, Any]]:
        """Apply `action` to all hosts in parallel; skip hosts that are lost meanwhile."""

        def attempt(host: RemoteHost) -> tuple[RemoteHost, Any, ClusterError | None]:
            try:
                return host, action(host), None
            except ClusterError as error:
                return host, None, error

        with ThreadPoolExecutor(max_workers=len(self._hosts)) as pool:
            for host, found, error in pool.map(attempt, [host for host in self._hosts if not host.lost]):
                if error is None:
                    yield host, found
                elif not host.lost:
                    raise error


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()
