"""Files of the notebook: into those that it holds open to write, a cell writes from an engine. A closed one goes as a closed one.

The file itself stays where it is, with its buffer and its place. On an engine something stands for it that hands over what is
written to it, as displays of a type of its own: in the order of what the cell prints, and not again what was written before a restart.
"""

from __future__ import annotations

import base64
import csv
import gc
import io
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ipykernel.iostream import OutStream

WRITTEN = "application/vnd.jupyter-dtrain.file"
"""The type of a display that is for an open file of the notebook."""

_Writer = type(csv.writer(io.StringIO()))
_FORMAT = ("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict")
_keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_files: WeakValueDictionary[str, Any] = WeakValueDictionary()

Opener = Callable[[str, str, str | None], Any]
of_cell: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()
"""Files that a cell has opened on this engine, with their paths and ``"added"`` or ``"open"``, as it writes to their ends or not."""
_opener: ContextVar[Opener | None] = ContextVar("_opener", default=None)
_keeps: ContextVar[bool] = ContextVar("_keeps", default=False)


@contextmanager
def kept_open() -> Iterator[None]:
    """Let files of the cell be pickled as ones to be opened again by what :func:`opened_by` names."""
    token = _keeps.set(True)
    try:
        yield
    finally:
        _keeps.reset(token)


@contextmanager
def opened_by(opener: Opener | None) -> Iterator[None]:
    """Let `opener` open files that are unpickled: of a path, of a kind (see `of_cell`), as text of an encoding or as bytes."""
    token = _opener.set(opener)
    try:
        yield
    finally:
        _opener.reset(token)


def reduced_file(obj: Any) -> Any:
    """Return how a file, the notebook's ``sys.stdout`` or a ``csv.writer`` is sent; ``NotImplemented`` for all else."""
    if isinstance(obj, io.TextIOWrapper | io.BufferedReader | io.BufferedWriter) and obj.closed:
        return _closed, (obj.name, getattr(obj, "mode", "rb"))
    if _keeps.get() and isinstance(obj, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom) and obj in of_cell:
        return _opened_again, (*of_cell[obj], getattr(obj, "encoding", None))
    if isinstance(obj, OutStream):
        return StandardStream, (obj.name,)
    if isinstance(obj, io.TextIOWrapper | io.BufferedWriter) and isinstance(obj.name, str) and obj.writable():
        if obj.readable() and obj not in of_cell:  # cloudpickle would take a copy of what is in it
            raise TypeError(f"cannot pickle {type(obj).__name__!r} object: it is open for reading and writing")
        key = _keys.setdefault(obj, uuid.uuid4().hex)
        _files[key] = obj
        kind = TextFile if isinstance(obj, io.TextIOWrapper) else BinaryFile
        return kind, (key, str(Path(obj.name).absolute()), obj.name, getattr(obj, "mode", "w"))
    if isinstance(obj, io.TextIOWrapper) and obj.readable() and obj.seekable() and not obj.writable():
        return _copy_to_read, (*_text_and_place(obj), obj.name, obj.mode)
    if isinstance(obj, _Writer):
        write = next((part for part in gc.get_referents(obj) if getattr(part, "__name__", "") == "write"), None)
        if write is not None:
            return _writer, (write.__self__, {name: getattr(obj.dialect, name) for name in _FORMAT})
    return NotImplemented


def _text_and_place(file: io.TextIOWrapper) -> tuple[str, int]:
    """Return what is in a file, and how many characters of it have been read; walking over it, it tells nobody its place."""
    rest = file.read()
    file.seek(0)
    text = file.read()
    place = len(text) - len(rest)
    file.seek(0)
    file.read(place)
    return text, place


def _copy_to_read(text: str, place: int, name: str, mode: str) -> io.StringIO:
    copy: Any = io.StringIO(text)
    copy.seek(place)
    copy.name, copy.mode = name, mode
    return copy  # type: ignore[no-any-return]


def _opened_again(path: str, kind: str, encoding: str | None) -> Any:
    opener = _opener.get()
    return opener(path, kind, encoding) if opener is not None else _closed(path, "wb" if encoding is None else "w")


def _closed(name: Any, mode: str) -> Any:
    file: Any = Path(os.devnull).open(mode.replace("x", "w"))  # noqa: SIM115 -- it is closed at once
    file.close()
    getattr(file, "buffer", file).raw.name = name
    return file


def _writer(file: Any, form: Mapping[str, Any]) -> Any:
    return csv.writer(file, **form)


class _AtHome:
    """What stands on an engine for a file of the notebook."""

    def __init__(self, key: str, path: str, name: str, mode: str) -> None:
        self._key, self._path = key, path
        self.name, self.mode = name, mode

    def __reduce__(self) -> Any:
        return type(self), (self._key, self._path, self.name, self.mode)

    def _tell(self, **what: Any) -> None:
        from IPython.display import publish_display_data

        publish_display_data({WRITTEN: {"key": self._key, "path": self._path, **what}})

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if not self.closed:  # type: ignore[attr-defined]
            self._tell(flush=True)

    def __del__(self) -> None:
        """Leave the notebook's file open: what stood for it may be that of a run that goes on elsewhere."""

    def close(self) -> None:
        if not self.closed:  # type: ignore[attr-defined]
            self._tell(close=True)
        super().close()  # type: ignore[misc]


class TextFile(_AtHome, io.TextIOBase):
    """A file of text, on an engine."""

    def write(self, text: str) -> int:
        """Hand over `text`."""
        self._tell(text=text)
        return len(text)


class BinaryFile(_AtHome, io.BufferedIOBase):
    """A file of bytes, on an engine."""

    def write(self, data: Any) -> int:
        """Hand over `data`."""
        self._tell(data=base64.b64encode(data).decode())
        return memoryview(data).nbytes


class StandardStream(io.TextIOBase):
    """What ``sys.stdout`` or ``sys.stderr`` is at the moment: where a cell runs it is another object than in the notebook."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return type(self), (self.name,)

    def writable(self) -> bool:
        """Return ``True``."""
        return True

    def isatty(self) -> bool:
        """Return ``False``."""
        return False

    def write(self, text: str) -> int:
        """Write to the stream."""
        getattr(sys, self.name).write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        getattr(sys, self.name).flush()

    def close(self) -> None:
        """Leave the stream as it is."""


def handle(written: Mapping[str, Any]) -> None:
    """Do to a file of this notebook what was done on an engine; if it was another kernel's, what is written goes to its end."""
    data = written.get("text", base64.b64decode(written["data"]) if "data" in written else None)
    file = _files.get(written["key"])
    if file is None or file.closed:
        if data is not None:
            with Path(written["path"]).open("a" if "text" in written else "ab") as file:
                file.write(data)
    elif data is not None:
        file.write(data)
    elif "flush" in written:
        file.flush()
    else:
        file.close()
