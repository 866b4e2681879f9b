"""Files that the cell writes, written once: by rank 0.

The cell runs on every rank, but has one set of files: a line must not be appended to a log once per rank, and no rank may read a
checkpoint while another writes it. So on the other ranks, what the cell writes into the notebook's folder, or with ``torch.save`` and
PyTorch's profiler, goes into a folder of the rank's own, and is read from there. Only rank 0 removes and renames files and makes folders:
it reports the result for each folder (:mod:`.made_folders`), which the others then get.

Handled are Python's own functions (``open``, `os`, ``torch.save``, traces of a profiler), and only where the user's code calls them.
Libraries that write by themselves, caches and this project's checkpoints are not touched.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler

from ...system.patches import patched
from .asked_paths import asked_path, by_path, is_for_writing, open_replaced, opens_itself
from .followed_folders import FollowedFolders
from .made_folders import CellStart, FolderChannel
from .temp_dirs import TemporaryFolders

SCRIPTED: tuple[Any, ...] = torch.jit.ScriptModule, torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]  # each has its own `save`
CLOCK_STEP = 20_000_000  # ns by which the times of files may lag behind the clock


class OwnFiles:
    """The files that a rank other than 0 writes during a run.

    Parameters
    ----------
    start : CellStart
        The time when the cell began: later changes are rank 0's.
    word : FolderChannel
        Reports of rank 0 about folders.
    temporary : TemporaryFolders
        Folders of the rank's own.

    Attributes
    ----------
    own : dict of str to str
        The rank's own path of each file that the cell has written.
    """

    def __init__(self, *, start: CellStart, word: FolderChannel, temporary: TemporaryFolders) -> None:
        self._temporary, self._before = temporary, start.time - CLOCK_STEP
        self._folder = word.folder
        self.own: dict[str, str] = {}
        self._gone: set[str] = set()  # what it has removed, which rank 0 may have yet to do
        self._folders = FollowedFolders(word, is_here=self.is_here, on_made=self._gone.discard, start=start)
        self._stat, self._lstat = os.stat, os.lstat
        self._place, self._count = "", 0

    @contextmanager
    def installed(self, besides: Iterable[tuple[Any, str, Callable[..., Any]]] = ()) -> Iterator[None]:
        """Follow what the cell does with files, in the ``with`` block; the rank's own files are removed at its end.

        `besides`: owner, name and replacement of other functions that concern files.
        """
        # In a folder of the cluster's own, which is removed with the cluster: a rank that is killed removes nothing.
        folder = os.environ.get("IPP_PROFILE_DIR")
        with tempfile.TemporaryDirectory(prefix="dtrain-files-", dir=folder) as self._place, ExitStack() as stack:
            stack.enter_context(open_replaced(self._open(builtins.open)))
            for target, name, replacement in (
                (torch, "save", self._saved(torch.save)),
                (torch, "load", self._loaded(torch.load)),
                (torch.export, "save", self._saved(torch.export.save)),
                (torch.export, "load", self._loaded(torch.export.load)),
                (torch.jit, "load", self._loaded(torch.jit.load)),
                *((kind, "save", self._exported(kind.save)) for kind in SCRIPTED),
                (profiler.profile, "export_chrome_trace", self._exported(profiler.profile.export_chrome_trace)),
                (os, "mkdir", self._folders.mkdir(os.mkdir)),
                (os, "makedirs", self._folders.makedirs(os.makedirs)),
                (os, "remove", self._removed(os.remove)),
                (os, "unlink", self._removed(os.unlink)),
                (os, "rmdir", self._removed(os.rmdir)),
                (shutil, "rmtree", self._removed(shutil.rmtree)),
                (os, "rename", self._renamed(os.rename)),
                (os, "replace", self._renamed(os.replace)),
                (os, "stat", self._looked_up(os.stat)),  # by which others tell whether there is something
                (os, "lstat", self._looked_up(os.lstat)),
                *besides,
            ):
                stack.enter_context(patched(target, name, by_path(getattr(target, name), replacement)))
            yield

    # -- where something is ------------------------------------------------------------------------------------------

    def is_here(self, path: str | None) -> bool:
        """Return whether writes to `path` are followed: in the notebook's folder, or where the cell has written before."""
        return path is not None and (path in self.own or path.startswith(self._folder))

    def can_write(self, path: str, *, makes: bool) -> bool:
        """Return whether a file at `path` is written and followed; one that the call does not make has to be there, and be no folder."""
        if path in self.own or not self.is_here(path):
            return path in self.own
        return makes if self.is_gone(path) else not Path(path).is_dir() and (makes or Path(path).exists())

    def is_gone(self, path: str | None) -> bool:
        """Return whether the cell has removed the file at `path`."""
        return path is not None and any(path == gone or path.startswith(gone + os.sep) for gone in self._gone)

    def is_there(self, path: str) -> bool:
        """Return whether the cell finds something at `path`, be it a broken link."""
        if path in self.own:
            return os.path.lexists(self.own[path])
        with suppress(OSError):
            # A file that rank 0 has given another name meanwhile is as old as it was.
            return not self.is_gone(path) and self._lstat(path).st_ctime_ns < self._before
        return False

    def _is_from_before(self, path: str) -> bool:
        """Return whether there is a file that has not changed since the cell began."""
        with suppress(OSError):
            return self._stat(path).st_mtime_ns < self._before
        return False

    def instead(self, path: str, *, keep: bool, there: bool = False) -> str:
        """Return the rank's own path for writes to `path`; with `keep`, its contents are copied there first.

        Rank 0 may already have written what the cell writes now. If the file has to be `there`, that content is used all the same.
        """
        own = self.own.get(path)
        if own is None:
            self._count += 1
            own = str(Path(self._place) / f"{self._count}-{Path(path).name}")
            if keep and not self.is_gone(path):
                try:
                    if there or self._is_from_before(path):
                        Path(own).write_bytes(Path(path).read_bytes())
                except OSError:  # it says so when it is opened
                    Path(own).unlink(missing_ok=True)
            self.own[path] = own
        self._gone.discard(path)
        return own

    def look_again(self) -> None:
        """Read the disk again, where rank 0 and its commands have made all changes of the cell so far."""
        self._gone.clear()

    # -- what the cell does ------------------------------------------------------------------------------------------

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if opens_itself(args, kwargs) or (not is_for_writing(mode) and not self.own and not self._gone):
                return original(file, mode, *args, **kwargs)
            path = asked_path(file)
            if path is not None and is_for_writing(mode) and self.can_write(path, makes="r" not in mode):
                if "x" in mode and self.is_there(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(file))
                file = self.instead(path, keep="w" not in mode and "x" not in mode, there="r" in mode)
            elif path in self.own:
                file = self.own[path]
            elif self.is_gone(path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(file))
            return original(file, mode, *args, **kwargs)

        return opened

    def _saved(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = asked_path(f)
            if path is not None and not self._temporary.has(path):
                f = self.instead(path, keep=False)
            return original(obj, f, *args, **kwargs)

        return saved

    def _exported(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def exported(obj: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            asked = asked_path(path)
            return original(obj, path if asked is None else self.instead(asked, keep=False), *args, **kwargs)

        return exported

    def _loaded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
            path = asked_path(f) if self.own else None
            return original(f if path is None else self.own.get(path, f), *args, **kwargs)

        return loaded

    def _removed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def removed(path: Any, *args: Any, **kwargs: Any) -> None:
            gone = asked_path(path)
            if gone is None or not self.is_here(gone):
                original(path, *args, **kwargs)
                return
            if Path(gone).is_dir() or self._is_from_before(gone):  # else rank 0 may have made another in the meantime
                self._gone.add(gone)
            for name in [name for name in self.own if name == gone or name.startswith(gone + os.sep)]:
                del self.own[name]
            if self._folders.forget(gone):
                original(path, *args, **kwargs)

        return removed

    def _renamed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def renamed(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            old, new = asked_path(src), asked_path(dst)
            if old is None or new is None or not self.is_here(old):
                original(src, dst, *args, **kwargs)
            else:
                moved = [name for name in self.own if name == old or name.startswith(old + os.sep)]
                taken = {new + name.removeprefix(old): self.own.pop(name) for name in moved}
                self.own.pop(new, None)
                self.own.update(taken)
                self._folders.rename(old, new)
                self._gone.add(old)
                self._gone.discard(new)

        return renamed

    def _looked_up(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            asked = asked_path(path) if self.own or self._gone or self._folders.known else None
            if asked not in self.own and self.is_gone(asked):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            result: os.stat_result
            try:
                result = original(path if asked is None else self.own.get(asked, path), *args, **kwargs)
            except FileNotFoundError:
                if asked not in self._folders.known:
                    raise
                result = original(self._place, *args, **kwargs)  # rank 0 has removed it already
            return result

        return stat
