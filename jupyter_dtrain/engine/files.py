"""Files that the cell writes, written once: by rank 0.

The cell runs on every rank, and what it writes is one file: a line appended to a log must not be there as often as there are
ranks, and no rank may read a checkpoint that another is just writing. So on the other ranks what the cell writes into the notebook's
folder, or with ``torch.save``, goes into a folder of the rank's own, and is read from there. What they remove or rename, rank 0 does.

Only Python's own ways are followed (``open``, `os`, ``torch.save``), and only where the user's code is what calls; libraries that write
by themselves, caches and this project's checkpoints are left alone.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from IPython.core import interactiveshell

from .whose import is_users

MKDIR_TIMEOUT = 10.0  # seconds that rank 0 may be behind
CLOCK_STEP = 20_000_000  # ns by which the times of files may lag behind the clock
_OURS = str(Path(__file__).parents[1])
_HERE = __file__


class OwnFiles:
    """What a rank other than 0 writes, for the time of a run.

    Parameters
    ----------
    folder : Path
        The notebook's.
    started : int
        When the cell was about to run, in ns since the epoch: what has changed since, rank 0 has changed.
    """

    def __init__(self, folder: Path, *, started: int) -> None:
        self._before = started - CLOCK_STEP
        self._folder = f"{folder.resolve()}{os.sep}"
        self._own: dict[str, str] = {}  # where the cell has written, and where that is
        self._place = ""
        self._count = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Follow what the cell does with files, until the end of the ``with`` block; what it wrote is gone then."""
        with tempfile.TemporaryDirectory(prefix="dtrain-files-") as self._place, ExitStack() as stack:
            for target, name, replacement in (
                (builtins, "open", self._open(builtins.open)),
                (io, "open", self._open(io.open)),
                (interactiveshell, "io_open", self._open(builtins.open)),  # by which `open` in a notebook's cells opens
                (torch, "save", self._saved(torch.save)),
                (torch, "load", self._loaded(torch.load)),
                (os, "mkdir", self._mkdir(os.mkdir)),
                (os, "remove", self._removed(os.remove)),
                (os, "unlink", self._removed(os.unlink)),
                (os, "rmdir", self._removed(os.rmdir)),
                (shutil, "rmtree", self._removed(shutil.rmtree)),
                (os, "rename", self._renamed(os.rename)),
                (os, "replace", self._renamed(os.replace)),
                (os.path, "exists", self._exists(os.path.exists)),
                (os.path, "isfile", self._exists(os.path.isfile)),
            ):
                stack.enter_context(mock.patch.object(target, name, replacement))
            yield

    # -- where something is ------------------------------------------------------------------------------------------

    def _path(self, file: Any) -> str | None:
        """Return the whole path of what names a file, ``None`` where the user's code does not ask, or `file` is none."""
        # Not resolved: a link is removed and renamed as itself.
        return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) and _user_asks() else None  # noqa: PTH100

    def _is_here(self, path: str | None) -> bool:
        return path is not None and (path in self._own or path.startswith(self._folder))

    def _instead(self, path: str, *, keep: bool) -> str:
        """Return where the rank writes what the cell writes to `path`, with what was there before if it is to `keep` that."""
        own = self._own.get(path)
        if own is None:
            self._count += 1
            own = str(Path(self._place) / f"{self._count}-{Path(path).name}")
            if keep and Path(path).is_file() and Path(path).stat().st_mtime_ns < self._before:
                shutil.copyfile(path, own)
            self._own[path] = own
        return own

    # -- what the cell does ------------------------------------------------------------------------------------------

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wax+") and not self._own:
                return original(file, mode, *args, **kwargs)
            path = self._path(file)
            if path is not None and set(mode) & set("wax+") and self._is_here(path):
                file = self._instead(path, keep="w" not in mode and "x" not in mode)
            elif path in self._own:
                file = self._own[path]
            return original(file, mode, *args, **kwargs)

        return opened

    def _saved(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._path(f)
            return original(obj, f if path is None else self._instead(path, keep=False), *args, **kwargs)

        return saved

    def _loaded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._path(f) if self._own else None
            return original(f if path is None else self._own.get(path, f), *args, **kwargs)

        return loaded

    def _mkdir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_here(self._path(path)):
                original(path, *args, **kwargs)
                return
            deadline = time.monotonic() + MKDIR_TIMEOUT
            while not Path(path).is_dir():  # rank 0 makes it, or says why not
                if time.monotonic() > deadline or not Path(path).absolute().parent.is_dir():
                    original(path, *args, **kwargs)
                    return
                time.sleep(0.01)

        return mkdir

    def _removed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def removed(path: Any, *args: Any, **kwargs: Any) -> None:
            gone = self._path(path)
            if gone is None or not self._is_here(gone):
                original(path, *args, **kwargs)
                return
            for name in [name for name in self._own if name == gone or name.startswith(gone + os.sep)]:
                del self._own[name]

        return removed

    def _renamed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def renamed(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            old, new = self._path(src), self._path(dst)
            if old is None or new is None or not self._is_here(old):
                original(src, dst, *args, **kwargs)
            elif old in self._own:
                self._own[new] = self._own.pop(old)

        return renamed

    def _exists(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def exists(path: Any) -> bool:
            return bool(self._own and self._path(path) in self._own) or original(path)

        return exists


def _user_asks() -> bool:
    """Return whether the user's code is what calls, directly or through a library, and not this project."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OURS):
            if name != _HERE:
                return False
        elif is_users(name):
            return True
        frame = frame.f_back
    return False
