"""Open files of the notebook: a cell on an engine writes into files that the notebook holds open. A closed file is sent as closed.

The file itself stays in the notebook with its buffer and position. On an engine a proxy sends what is written as displays of a MIME type
of its own. So writes keep their order among the cell's output, and are not repeated after a restart.
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
"""MIME type of displays that carry writes to an open file of the notebook."""

_Writer = type(csv.writer(io.StringIO()))
_FORMAT = ("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting", "skipinitialspace", "strict")
_keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_files: WeakValueDictionary[str, Any] = WeakValueDictionary()

Opener = Callable[[str, str, str | None], Any]
of_cell: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()
"""Files that a cell has opened on this engine → path, and ``"added"`` if it appends, else ``"open"``."""
_opener: ContextVar[Opener | None] = ContextVar("_opener", default=None)
_keeps: ContextVar[bool] = ContextVar("_keeps", default=False)


@contextmanager
def kept_open() -> Iterator[None]:
    """Pickle files of the cell such that the opener given to :func:`opened_by` opens them again."""
    token = _keeps.set(True)
    try:
        yield
    finally:
        _keeps.reset(token)


@contextmanager
def opened_by(opener: Opener | None) -> Iterator[None]:
    """Let `opener` open files that are unpickled. It takes the path, the kind (see `of_cell`), and the encoding or ``None`` for bytes."""
    token = _opener.set(opener)
    try:
        yield
    finally:
        _opener.reset(token)


def reduced_file(obj: Any) -> Any:
    """Return the reduce value of a file, the notebook's ``sys.stdout`` or a ``csv.writer``; ``NotImplemented`` for all else."""
    if isinstance(obj, io.TextIOWrapper | io.BufferedReader | io.BufferedWriter) and obj.closed:
        return _closed, (obj.name, getattr(obj, "mode", "rb"))
    if _keeps.get() and isinstance(obj, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom) and obj in of_cell:
        return _opened_again, (*of_cell[obj], getattr(obj, "encoding", None))
    if isinstance(obj, OutStream):
        return StandardStream, (obj.name,)
    if isinstance(obj, io.TextIOWrapper | io.BufferedWriter) and isinstance(obj.name, str) and obj.writable():
        if obj.readable() and obj not in of_cell:  # cloudpickle would send a copy of its contents
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
    """Return the text of a file, and how many characters of it were read: `tell` is not available during iteration."""
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
    """Proxy on an engine for a file of the notebook."""

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
        """Do not close the notebook's file: this proxy may belong to a run that continues elsewhere."""

    def close(self) -> None:
        if not self.closed:  # type: ignore[attr-defined]
            self._tell(close=True)
        super().close()  # type: ignore[misc]


class TextFile(_AtHome, io.TextIOBase):
    """Proxy for a text file."""

    def write(self, text: str) -> int:
        """Send `text` to the notebook's file."""
        self._tell(text=text)
        return len(text)


class BinaryFile(_AtHome, io.BufferedIOBase):
    """Proxy for a binary file."""

    def write(self, data: Any) -> int:
        """Send `data` to the notebook's file."""
        self._tell(data=base64.b64encode(data).decode())
        return memoryview(data).nbytes


class StandardStream(io.TextIOBase):
    """The current ``sys.stdout`` or ``sys.stderr``, which on an engine is another object than in the notebook."""

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
        """Do nothing: the stream stays open."""


def handle(written: Mapping[str, Any]) -> None:
    """Apply a write, flush or close from an engine to the notebook's file; append to the path if the file belongs to another kernel."""
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
