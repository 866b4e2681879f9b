"""Write a detached cell's output to a file: a kernel that attaches later sees all of it, and a slow one does not block the cell."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..elastic.main_thread_output import Output
from ..runs.record import ViewedRun

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
BATCH = 1 << 20  # bytes that are read at once
_LENGTH = 8  # bytes of the length before each call


class Journal:
    """An `Output` that writes the calls of its methods to a file. Thread-safe.

    Parameters
    ----------
    path : Path
    on_call : callable
        Called after each write.

    Attributes
    ----------
    on_run : callable
        Called with the run at each :meth:`show_run`.
    """

    def __init__(self, path: Path, *, on_call: Callable[[], None]) -> None:
        self.path = path
        self._on_call = on_call
        self.on_run: Callable[[ViewedRun], None] = lambda _run: None
        self._lock = threading.Lock()
        self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0)  # noqa: PTH123, SIM115

    def stream(self, name: str, text: str) -> None:
        """Write `text` printed to ``stdout`` or ``stderr``."""
        self._add("stream", name, text)

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Write a rich display."""
        self._add("display", content, update=update)

    def clear(self, *, wait: bool) -> None:
        """Write that the output was cleared."""
        self._add("clear", wait=wait)

    def progress(self, text: str) -> None:
        """Write a progress message."""
        self._add("progress", text)

    def say(self, text: str) -> None:
        """Write a message of this project."""
        self._add("say", text)

    def show_run(self, run: ViewedRun) -> None:
        """Call `on_run` and write nothing, as views of the run get updates in another way."""
        self.on_run(run)

    def _add(self, method: str, *arguments: Any, **options: Any) -> None:
        call = pickle.dumps((method, arguments, options), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._file.write(len(call).to_bytes(_LENGTH, "big") + call)
        self._on_call()


def read_calls(path: Path, position: int) -> tuple[list[Call], int]:
    """Return calls from `position` on, about `BATCH` bytes at most, and the position after them."""
    calls: list[Call] = []
    first = position
    with path.open("rb") as file:
        while True:
            file.seek(position)
            head = file.read(_LENGTH)
            length = int.from_bytes(head, "big")
            data = file.read(length)
            if len(head) < _LENGTH or len(data) < length:  # the end, or an unfinished write
                return calls, position
            if calls and position + length - first > BATCH:
                return calls, position
            calls.append(pickle.loads(data))
            position += _LENGTH + length


def calls_in(data: bytes) -> Iterator[Call]:
    """Yield all calls of a journal."""
    position = 0
    while position + _LENGTH <= len(data):
        end = position + _LENGTH + int.from_bytes(data[position : position + _LENGTH], "big")
        if end > len(data):  # an unfinished write
            return
        yield pickle.loads(memoryview(data)[position + _LENGTH : end])
        position = end


def replay(calls: Iterable[Call], output: Output) -> None:
    """Make the calls on an output."""
    for method, arguments, options in calls:
        getattr(output, method)(*arguments, **options)
