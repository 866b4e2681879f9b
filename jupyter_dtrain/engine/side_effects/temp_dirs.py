"""Folders of ``with TemporaryDirectory()`` in a cell, which a resumed run finds as they were.

A rank that leaves because another has died leaves all ``with`` blocks, and its successor enters the same blocks again. So the folder
outlives the first rank, and the successor gets it. Each rank has folders of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ...system.patches import patched
from ..user_frames import is_users

_kept: dict[str, list[str]] = {}
"""Folders that a rank in this process has left behind, by the run that may resume with them."""


class TemporaryFolders:
    """The temporary folders of one rank.

    Parameters
    ----------
    run_id : str
        Folders that other runs have left are removed.
    is_jumping : callable
        Whether the run is entering ``with`` blocks again, on its way to the place from which it resumes.
    is_leaving : callable
        Whether the rank leaves, and the run resumes without it.
    """

    def __init__(
        self, run_id: str = "", *, is_jumping: Callable[[], bool] = lambda: False, is_leaving: Callable[[], bool] = lambda: False
    ) -> None:
        self._run_id, self._is_jumping, self._is_leaving = run_id, is_jumping, is_leaving
        self._open: list[str] = []
        self._again: list[str] = []
        for other in [other for other in _kept if other != run_id]:
            for folder in _kept.pop(other):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def open(self) -> tuple[str, ...]:
        """The present folders, in the order in which they were made."""
        return tuple(self._open)

    def has(self, path: str) -> bool:
        """Return whether `path` is in one of the folders."""
        return any(path.startswith(folder + os.sep) for folder in self._open)

    def go_on_with(self, folders: Sequence[str]) -> None:
        """Give these folders to the ``with`` blocks that are entered again."""
        self._again = list(folders)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow the folders that the cell makes, in the ``with`` block."""
        make, remove = tempfile.mkdtemp, tempfile.TemporaryDirectory._rmtree  # type: ignore[attr-defined]

        def mkdtemp(*args: Any, **kwargs: Any) -> Any:
            if not _user_makes():
                return make(*args, **kwargs)
            if self._again and self._is_jumping():
                folder = self._again.pop(0)
                os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            else:
                folder = make(*args, **kwargs)
            self._open.append(folder)
            return folder

        def rmtree(name: str, *args: Any, **kwargs: Any) -> None:
            if name in self._open:
                self._open.remove(name)
                if self._is_leaving():
                    _kept.setdefault(self._run_id, []).append(name)
                    return
            remove(name, *args, **kwargs)

        with ExitStack() as stack:
            stack.enter_context(patched(tempfile, "mkdtemp", mkdtemp))
            stack.enter_context(patched(tempfile.TemporaryDirectory, "_rmtree", staticmethod(rmtree)))
            yield


def _user_makes() -> bool:
    """Return whether the user's code itself, and not a library, makes the call or the `TemporaryDirectory`."""
    frame = sys._getframe(2)
    if frame.f_code.co_filename == tempfile.__file__ and frame.f_back is not None:
        frame = frame.f_back
    return is_users(frame.f_code.co_filename)
