"""A journal of the changes of files since each snapshot, so that recomputed steps do not make them twice.

A run that resumes from a snapshot would append lines again, remove files that are gone, and make folders that exist. So rank 0, which
writes for all ranks, records its changes in a file in the run's folder, with a mark at each snapshot. Before the next generation of ranks
begins, the kernel truncates files to their size at the snapshot (:func:`cut_back`). A change that fails only because it was made before
counts as made. Files that were open at the snapshot are opened again at the same position.

Only appended data are undone: a file that was overwritten is overwritten again. A file to which another program has appended is not
truncated. Nor does a kernel that takes over a run later truncate files, as other programs may use them by then.
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
from .asked_paths import asked_path, is_for_writing, is_within_open_folder, open_replaced, opens_itself
from .journal_entries import Entry, entries_since, file_size, kind_and_paths, read_entries

KEPT_MARKS = 16
"""Number of snapshots whose marks are kept; the newest complete one is among the last of them."""


class FileLog:
    """Records the changes of files by rank 0 during a run.

    Parameters
    ----------
    log : Path
        The journal.
    folder : Path
        The notebook's folder; changes elsewhere are made by each rank.
    since : int, optional
        Number of the snapshot from which the run resumes; ``None``: from its beginning.
    jumps : callable
        Whether the run is still on its way to the place from which it resumes.
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
        """Record what the cell does with files, in the ``with`` block."""
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
        """Record that the snapshot `number` is taken here, after flushing what the cell has written so far."""
        self._flush()
        self._noted.clear()
        sizes = self._sizes()
        self._marks.append({"do": "snapshot", "number": number, "step": step, "place": place, **sizes})
        if self._has_noted or any(sizes.values()):
            self._write()

    def at_boundary(self) -> None:
        """Record the sizes of files that the cell has closed, before another program writes to them."""
        if self._writing:
            closed = self._writing.difference(path for file, (path, _) in list(self._files.items()) if not file.closed)
            self._writing -= closed
            self._sizes_closed.update((path, file_size(path)) for path in closed)

    def _flush(self) -> None:
        """Flush the open files."""
        for file in list(self._files):
            if not file.closed:
                with suppress(OSError, ValueError):
                    file.flush()

    def _sizes(self) -> dict[str, dict[str, int]]:
        """Return the sizes of open files: those that are appended to, and others."""
        sizes: dict[str, dict[str, int]] = {"open": {}, "added": {}}
        for file, (path, kind) in list(self._files.items()):
            if not file.closed and (size := file_size(path)) is not None:
                sizes[kind][path] = size
        return sizes

    def _note(self, entry: Entry) -> None:
        self._marks.append(entry)
        self._write()

    def _write(self) -> None:
        """Write records to the journal. Marks alone are not written: most cells write no files."""
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
        """Return the absolute path of a file in the notebook's folder, ``None`` if the user's code does not make the call."""
        path = asked_path(file)
        return path if path is not None and path.startswith(self._folder) else None

    # -- what the cell does ------------------------------------------------------------------------------------------

    def _opened(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            path = self._path(file) if is_for_writing(mode) and not opens_itself(args, kwargs) else None
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
        """Return a file that was open at the snapshot, open at the same position."""
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
        """Undo what was written to reopened files on the way to the place from which the run resumes: they have it already."""
        for path, file in self._again.items():
            if path in self._open and not file.closed:
                with suppress(OSError, ValueError):
                    file.flush()
                    os.truncate(path, min(self._open[path], file_size(path) or 0))
                    file.seek(0, os.SEEK_END)

    def _opened_again(self, original: Callable[..., Any], file: Any, path: str, mode: str, args: Any, kwargs: Any) -> Any:
        """Open a file, or reopen it at its position at the snapshot from which the run resumes."""
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
        """Wrap `original` to ignore the error `already` if the run has made this change before, in a step that is recomputed."""

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
