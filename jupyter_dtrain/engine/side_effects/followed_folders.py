"""Folders that the cell makes, on ranks other than 0: only rank 0 makes them, and the others get its result (:mod:`.made_folders`)."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from .asked_paths import asked_path
from .made_folders import A_FOLDER, CellStart, FolderChannel

MKDIR_TIMEOUT = 10.0  # seconds that rank 0 may be behind


class FollowedFolders:
    """The folders of one run.

    Parameters
    ----------
    word : FolderChannel
        Reports of rank 0 about folders.
    is_here : callable
        Whether rank 0 makes what is at a path.
    on_made : callable
        Called with the path of each folder that exists then.
    start : CellStart

    Attributes
    ----------
    known : set of str
        Folders that rank 0 has made for the cell, and may have removed again, or that existed before on its host alone.
    """

    def __init__(
        self, word: FolderChannel, *, is_here: Callable[[str | None], bool], on_made: Callable[[str], None], start: CellStart
    ) -> None:
        self._word, self._is_here, self._on_made = word, is_here, on_made
        self.known = {word.folder + name for name in start.folders} if start.is_far else set()
        self._own: set[str] = set()  # which this rank has made itself, as their names are not those that rank 0 gives
        self._sees_disk = not start.is_far  # of rank 0

    def forget(self, gone: str) -> bool:
        """Note that `gone`, with its contents, is removed; return whether this rank has to remove it itself."""
        self.known = {name for name in self.known if name != gone and not name.startswith(gone + os.sep)}
        is_own = gone in self._own
        self._own.discard(gone)
        return is_own

    def rename(self, old: str, new: str) -> None:
        """Note that rank 0 renames the folder `old`."""
        self.known = {new + name.removeprefix(old) if name == old or name.startswith(old + os.sep) else name for name in self.known}

    def mkdir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``os.mkdir``."""

        @wraps(original)
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            asked = asked_path(path)
            if asked is None or not self._is_here(asked):
                original(path, *args, **kwargs)
                return
            parent = Path(asked).parent
            waits = str(parent) not in self._own and not self._word.makes_several
            error = self._heard("mkdir", asked, limit=MKDIR_TIMEOUT if waits else 0, parent=parent)
            if error is None:  # of rank 0: it makes none of this name, or is about to find what is found here
                error = 0 if parent.is_dir() else errno.ENOENT
                if not error and not Path(asked).is_dir():
                    original(path, *args, **kwargs)
                    self._own.add(asked)
            self._fare(error, path, asked)
            self._know(asked)

        return mkdir

    def makedirs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``os.makedirs``, which checks for parent folders; these may exist on rank 0's host alone."""

        @wraps(original)
        def makedirs(name: Any, *args: Any, **kwargs: Any) -> None:
            asked = None if self._word.makes_several else asked_path(name)
            if asked is None or not self._is_here(asked):
                original(name, *args, **kwargs)
                return
            error = self._heard("makedirs", asked, limit=MKDIR_TIMEOUT)
            if error is None:
                with self._word.with_those_above():
                    original(name, *args, **kwargs)
                return
            self._fare(error, name, asked)
            for folder in (asked, *map(str, Path(asked).parents)):
                if folder.startswith(self._word.folder):
                    self._know(folder)

        return makedirs

    def _heard(self, call: str, asked: str, *, limit: float, parent: Path | None = None) -> int | None:
        """Wait for rank 0's report, as long as the folder `parent` exists, if this rank can see that."""
        topics, deadline = self._word.topics_of(call, asked), time.monotonic() + limit
        while (error := self._word.heard(topics, asked)) is None and time.monotonic() < deadline:
            if parent is not None and self._sees_disk and not parent.is_dir():
                break
            time.sleep(0.01)
        return error

    def _fare(self, error: int, path: Any, asked: str) -> None:
        """Raise the error that rank 0 has reported, if any."""
        if error == A_FOLDER:
            self._know(asked)
            error = errno.EEXIST
        if error:
            raise OSError(error, os.strerror(error), path)

    def _know(self, folder: str) -> None:
        self.known.add(folder)
        self._on_made(folder)
