"""All that a detached cell shows, in a file: a kernel that comes later sees it from the beginning, and a slow one holds up nobody."""

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
_LENGTH = 8  # bytes before each call


class Journal:
    """An output that keeps what it is told. Any thread may use it.

    Parameters
    ----------
    path : Path
    on_call : callable
        Called after each.

    Attributes
    ----------
    on_run : callable
        Told of the run, again and again.
    """

    def __init__(self, path: Path, *, on_call: Callable[[], None]) -> None:
        self.path = path
        self._on_call = on_call
        self.on_run: Callable[[ViewedRun], None] = lambda _run: None
        self._lock = threading.Lock()
        self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0)  # noqa: PTH123, SIM115

    def stream(self, name: str, text: str) -> None:
        """Keep `text` printed to ``stdout`` or ``stderr``."""
        self._add("stream", name, text)

    def display(self, content: dict[str, Any], *, update: bool) -> None:
        """Keep a rich display."""
        self._add("display", content, update=update)

    def clear(self, *, wait: bool) -> None:
        """Keep that all was cleared."""
        self._add("clear", wait=wait)

    def progress(self, text: str) -> None:
        """Keep how far something is."""
        self._add("progress", text)

    def say(self, text: str) -> None:
        """Keep a line of this project's own."""
        self._add("say", text)

    def show_run(self, run: ViewedRun) -> None:
        """Keep nothing: views of the run are told in another way."""
        self.on_run(run)

    def _add(self, method: str, *arguments: Any, **options: Any) -> None:
        call = pickle.dumps((method, arguments, options), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._file.write(len(call).to_bytes(_LENGTH, "big") + call)
        self._on_call()


def read_calls(path: Path, position: int) -> tuple[list[Call], int]:
    """Return calls from `position` on, not all at once where there are many, and where to go on."""
    calls: list[Call] = []
    first = position
    with path.open("rb") as file:
        while True:
            file.seek(position)
            head = file.read(_LENGTH)
            length = int.from_bytes(head, "big")
            data = file.read(length)
            if len(head) < _LENGTH or len(data) < length:  # the end, or one that is being written
                return calls, position
            if calls and position + length - first > BATCH:
                return calls, position
            calls.append(pickle.loads(data))
            position += _LENGTH + length


def calls_in(data: bytes) -> Iterator[Call]:
    """Return all calls that a journal held."""
    position = 0
    while position + _LENGTH <= len(data):
        end = position + _LENGTH + int.from_bytes(data[position : position + _LENGTH], "big")
        if end > len(data):  # one that was being written
            return
        yield pickle.loads(memoryview(data)[position + _LENGTH : end])
        position = end


def replay(calls: Iterable[Call], output: Output) -> None:
    """Show what was kept."""
    for method, arguments, options in calls:
        getattr(output, method)(*arguments, **options)
