"""File operations in a host's folder of buffers, as the notebook requests them from the host's agent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...errors import ClusterError
from ...system.resources import OVERFLOW
from ..folders import Folders, note_owner, remove_unguarded
from .frames import CHUNK, Header, checked_name

FORMER = 15.0
"""Seconds to wait for an earlier agent to end its processes."""


class AgentFiles:
    """Carry out the notebook's file requests.

    Parameters
    ----------
    say : callable
        Sends a header with bytes to the notebook.

    Attributes
    ----------
    folder : Path
        The folder that all names are relative to.
    own : Folders, optional
        This process's folders, after :meth:`begin`.
    """

    def __init__(self, say: Callable[[Header, bytes], None]) -> None:
        self.folder = Path()
        self.own: Folders | None = None
        self._say = say
        self._sending = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dtrain-send")

    def begin(self, folder: Path) -> tuple[bool, Folders, list[Path]]:
        """Use `folder`, the notebook's folder of buffers, and create it if it does not exist.

        Returns
        -------
        is_notebooks : bool
            Whether this host is the notebook's.
        folders : Folders
            Of this process.
        kept : list of Path
            Folders to remove at its end.
        """
        self.folder = folder
        is_notebooks = folder.is_dir()  # its random name exists on the notebook's host only
        self.own = folders = Folders()
        shutil.rmtree(folders.blobs, ignore_errors=True)
        folders.blobs = folder
        kept = [other for other in folders.all if other != folder]
        if not is_notebooks:
            # If the notebook's host has little shared memory, `folder` lies in the notebook's private folder, which does not exist here.
            made = [part for part in (folder, *folder.parents) if not part.exists()]
            for part in reversed(made):
                part.mkdir(mode=0o700)
            overflow = folders.private / "overflow"
            overflow.mkdir(mode=0o700, exist_ok=True)
            (folder / OVERFLOW).symlink_to(overflow)
            kept.append(made[-1])
            if made[-1] != folder:  # a folder in shared memory has a link to this process's private one instead
                note_owner(made[-1])
        return is_notebooks, folders, kept

    def do_outlive(self, *, folder: str) -> None:
        """Wait until the agent before has ended and its folder of buffers is gone; remove that if the host was rebooted."""
        deadline = time.monotonic() + FORMER
        while Path(folder).exists():
            if time.monotonic() > deadline:
                raise ClusterError(f"an earlier agent has not ended: wait a moment, or end it there ({folder} still exists).")
            remove_unguarded(Path(folder))
            time.sleep(0.1)

    def do_missing(self, *, names: list[str]) -> Header:
        """Return which of these files are missing here."""
        return {"missing": [name for name in names if not (self.folder / checked_name(name)).exists()]}

    def do_put(self, *, name: str, offset: int, last: bool, payload: bytes = b"") -> None:
        """Write a part of a file, which is renamed to its name with the `last` part."""
        path = self.folder / checked_name(name)
        aside = path.with_name(f".in-{path.name}")
        if not offset:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with aside.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(payload)
        if last:
            aside.rename(path)

    def do_get(self, *, name: str, transfer: int) -> None:
        """Send a file on a separate thread, so that the notebook's heartbeats are still received."""
        path = self.folder / checked_name(name)
        self._sending.submit(self._send, path, transfer)

    def _send(self, path: Path, transfer: int) -> None:
        try:
            with path.open("rb") as file:
                while part := file.read(CHUNK):
                    self._say({"event": "part", "transfer": transfer}, part)
            self._say({"event": "whole", "transfer": transfer}, b"")
        except OSError as error:
            self._say({"event": "whole", "transfer": transfer, "error": error.strerror or str(error)}, b"")

    def do_remove(self, *, names: list[str]) -> None:
        """Remove files, and folders with their contents."""
        for name in names:
            path = self.folder / checked_name(name)
            for found in path.parent.glob(path.name):
                if found.is_dir() and not found.is_symlink():
                    shutil.rmtree(found, ignore_errors=True)
                else:
                    found.unlink(missing_ok=True)

    def do_keep(self, *, names: list[str]) -> None:
        """Remove all buffers except these; hidden entries, such as snapshots, stay."""
        kept = set(names)
        self.do_remove(names=[entry.name for entry in self.folder.iterdir() if entry.name not in kept and not entry.name.startswith(".")])
