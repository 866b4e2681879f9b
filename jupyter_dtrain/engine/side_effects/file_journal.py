"""What a run has done to files since each of its snapshots, so that steps that are computed again do not do it twice.

A run that goes on from a snapshot appends the lines again that it has appended since, removes what is gone, and makes folders that
are there. So rank 0, which writes for all, notes what it does in a file of the run's folder, with a mark at each snapshot. Before
the next generation of ranks begins, the kernel cuts files back to what they were at the snapshot (:func:`cut_back`); and what fails in it
only because it has been done already is taken for done. Files that the cell has open over a snapshot are opened again where they were.

Only additions are taken back: a file that was written over is written over again. Where another program adds to the same file, nothing
of it is cut. A kernel that takes over later cuts nothing either: by then the file may be anybody's.
"""

from __future__ import annotations

import builtins
import json
import os
import shutil
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from ...serialization.open_files import of_cell
from ...system.patches import patched
from .asked_paths import asked_path, is_within_open_folder, open_replaced, opens_itself
from .journal_entries import Entry, entries_since, file_size, kind_and_paths, read_entries

KEPT_MARKS = 16
"""Snapshots that may be the newest whole one, more than enough."""


class FileLog:
    """What rank 0 does to files, for the time of a run.

    Parameters
    ----------
    log : Path
        Where that is noted.
    folder : Path
        The notebook's; what is elsewhere, each rank does.
    since : int, optional
        Number of the snapshot that the run goes on from; ``None``: from its beginning.
    jumps : callable
        Whether the run is on its way to where it goes on.
    """

    def __init__(self, log: Path, folder: Path, *, since: int | None, jumps: Callable[[], bool]) -> None:
        self._log, self._folder, self._jumps = log, f"{folder.resolve()}{os.sep}", jumps
        mark, entries = entries_since(read_entries(log), since)
        self._open: dict[str, int] = mark.get("open", {})  # sizes of the files that were open there
        self._again: dict[str, Any] = {}  # those that are open again
        self._original: Callable[..., Any] = builtins.open
        self._done = {kind_and_paths(entry) for entry in entries if entry["do"] in ("mkdir", "remove", "rename", "create")}
        self._noted: set[str] = set()  # since the last snapshot
        self._has_noted = log.exists()
        self._marks: deque[Entry] = deque(maxlen=KEPT_MARKS)  # before anything was noted
        self._files: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()  # path, and what the mark calls it
        self._writing: set[str] = set()  # files that the cell adds to
        self._sizes_closed: dict[str, int | None] = {}  # of such files when it had closed them

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Note what the cell does with files, until the end of the ``with`` block."""
        with open_replaced(self._opened(builtins.open)), ExitStack() as stack:
            for target, name, replacement in (
                (os, "mkdir", self._once("mkdir", os.mkdir, FileExistsError)),
                (os, "remove", self._once("remove", os.remove, FileNotFoundError)),
                (os, "unlink", self._once("remove", os.unlink, FileNotFoundError)),
                (os, "rmdir", self._once("remove", os.rmdir, FileNotFoundError)),
                (shutil, "rmtree", self._once("remove", shutil.rmtree, FileNotFoundError)),
                (os, "rename", self._once("rename", os.rename, FileNotFoundError)),
                (os, "replace", self._once("rename", os.replace, FileNotFoundError)),
            ):
                stack.enter_context(patched(target, name, replacement))
            try:
                yield
            finally:
                self._flush()  # what is written later would come after the cut

    def snapshot(self, number: int, *, step: int, place: str) -> None:
        """Note that the snapshot `number` is taken here, with all in the files that the cell has written so far."""
        self._flush()
        self._noted.clear()
        sizes = self._sizes()
        self._marks.append({"do": "snapshot", "number": number, "step": step, "place": place, **sizes})
        if self._has_noted or any(sizes.values()):
            self._write()

    def at_boundary(self) -> None:
        """Look how long files are that the cell has closed, before somebody else writes to them."""
        if self._writing:
            closed = self._writing.difference(path for file, (path, _) in list(self._files.items()) if not file.closed)
            self._writing -= closed
            self._sizes_closed.update((path, file_size(path)) for path in closed)

    def _flush(self) -> None:
        """Let the open files have all that was written to them."""
        for file in list(self._files):
            if not file.closed:
                with suppress(OSError, ValueError):
                    file.flush()

    def _sizes(self) -> dict[str, dict[str, int]]:
        """Return the sizes of the open files: of those that are added to, and others."""
        sizes: dict[str, dict[str, int]] = {"open": {}, "added": {}}
        for file, (path, kind) in list(self._files.items()):
            if not file.closed and (size := file_size(path)) is not None:
                sizes[kind][path] = size
        return sizes

    def _note(self, entry: Entry) -> None:
        self._marks.append(entry)
        self._write()

    def _write(self) -> None:
        """Write what is noted. Marks alone are not: most cells write no files."""
        self._has_noted = True
        lines = "".join(json.dumps(entry) + "\n" for entry in self._marks)
        self._marks.clear()
        with suppress(OSError):  # without it the cell goes on as well
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, lines.encode())
            finally:
                os.close(descriptor)

    def _path(self, file: Any) -> str | None:
        """Return the whole path of what names a file in the notebook's folder, ``None`` where the user's code does not ask."""
        path = asked_path(file)
        return path if path is not None and path.startswith(self._folder) else None

    # -- what the cell does ------------------------------------------------------------------------------------------

    def _opened(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            path = self._path(file) if set(mode) & set("wax+") and not opens_itself(args, kwargs) else None
            if path is None:
                return original(file, mode, *args, **kwargs)
            if "a" in mode:
                self._note_addition(path)
            elif "x" in mode:
                if ("create", path) in self._done:
                    self._done.discard(("create", path))
                    mode = mode.replace("x", "w")
                self._note({"do": "create", "path": path})
            found = self._opened_again(original, file, path, mode, args, kwargs)
            if "+" not in mode:
                self._know(found, path, "added" if "a" in mode else "open")
            return found

        return opened

    def _know(self, file: Any, path: str, kind: str) -> None:
        with suppress(TypeError):
            self._files[file] = of_cell[file] = path, kind
        if kind == "added":
            self._writing.add(path)

    def reopen(self, path: str, kind: str, encoding: str | None) -> Any:
        """Return a file that was open when the snapshot was taken, open where it was."""
        form, options = ("b", {}) if encoding is None else ("", {"encoding": encoding})
        kept, size = self._open.get(path), file_size(path)
        if kind == "added" or kept is None or size is None:
            file = self._original(path, "a" + form, **options)
        else:
            os.truncate(path, min(kept, size))
            file = self._original(path, "r+" + form, **options)
            file.seek(0, os.SEEK_END)
        self._know(file, path, kind)
        self._again[path] = file
        return file

    def arrived(self) -> None:
        """Take back what was written to these on the way to where the run goes on, which they have already."""
        for path, file in self._again.items():
            if path in self._open and not file.closed:
                with suppress(OSError, ValueError):
                    file.flush()
                    os.truncate(path, min(self._open[path], file_size(path) or 0))
                    file.seek(0, os.SEEK_END)

    def _opened_again(self, original: Callable[..., Any], file: Any, path: str, mode: str, args: Any, kwargs: Any) -> Any:
        """Open a file, or let it be open where it was when the snapshot was taken that the run goes on from."""
        again = self._again.get(path) if self._jumps() and "+" not in mode else None
        return again if again is not None and ("b" in mode) == ("b" in again.mode) else original(file, mode, *args, **kwargs)

    def _note_addition(self, path: str) -> None:
        size = file_size(path)
        if path not in self._writing and self._sizes_closed.get(path, size) != size:
            self._note({"do": "share", "path": path})  # somebody else has written to it
        elif path not in self._noted:
            self._noted.add(path)
            self._note({"do": "append", "path": path, "size": size})

    def _once(self, what: str, original: Callable[..., Any], already: type[OSError]) -> Callable[..., Any]:
        """Return `original`, whose error `already` is none where the run has done so in the steps that are computed again."""

        @wraps(original)
        def once(*args: Any, **kwargs: Any) -> Any:
            paths = [self._path(arg) for arg in args[: 2 if what == "rename" else 1]]
            key = (what, *paths)
            if not paths or None in paths or is_within_open_folder(kwargs):
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except already:
                if key not in self._done or (what == "mkdir" and not os.path.isdir(args[0])):  # noqa: PTH112
                    raise
                self._done.discard(key)
                return None
            self._note({"do": what, "paths": paths})
            return result

        return once
