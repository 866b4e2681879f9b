"""A trial computation without side effects: its output is discarded, and it is given up if it would leave something outside."""

from __future__ import annotations

import builtins
import io
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

from ... import api
from ...system.interpreter import unwarned
from ...system.patches import patched
from ...system.thread_output import kept_apart
from ..side_effects.asked_paths import is_for_writing
from ..side_effects.low_level_writes import WRITES
from ..user_frames import is_users

_EFFECTS = (
    *(
        "os.chdir",
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.system",
        "os.exec",
        "os.fork",
    ),
    *("os.posix_spawn", "os.putenv", "os.kill", "shutil.", "subprocess.", "socket.", "sqlite3.connect", "urllib.Request", "tempfile."),
)


class GivenUp(BaseException):
    """A trial would have had a side effect: a file, a process, a message."""


class _Guard:
    """An audit hook of the interpreter, which cannot be removed and is active during trials only."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self._is_there = False

    def start(self) -> None:
        if not self._is_there:
            self._is_there = True
            sys.addaudithook(self._see)
        self.thread = threading.get_ident()

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if self.thread is None or self.thread != threading.get_ident():
            return
        if event == "open":
            file, mode, flags = args
            if is_for_writing(mode) if isinstance(mode, str) else flags & WRITES:
                raise GivenUp(f"it writes a file ({file})")
        elif event.startswith(_EFFECTS):
            raise GivenUp(f"it does something outside of the cell ({event})")


_guard = _Guard()


def obstacle() -> str:
    """Return why nothing can be tried now; empty if nothing is in the way. Changes by another thread of the cell would be undone."""
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident() and any(is_users(each.f_code.co_filename) for each, _ in traceback.walk_stack(frame)):
            return "another thread of the cell runs"
    return ""


@contextmanager
def unnoticed() -> Iterator[io.StringIO]:
    """Discard output, log records and warnings in the ``with`` block, and raise `GivenUp` at a side effect.

    Yields
    ------
    io.StringIO
        The output that was discarded.
    """
    with ExitStack() as stack:
        said = stack.enter_context(kept_apart())
        stack.enter_context(unwarned())
        stack.enter_context(patched(logging.Logger, "handle", _of_other_threads(logging.Logger.handle)))
        for module in (builtins, io):
            stack.enter_context(patched(module, "open", _reading_only(module.open)))
        stack.enter_context(patched(torch, "save", _never))
        stack.enter_context(patched(api, "current", _Nobody()))
        _guard.start()
        try:
            yield said
        finally:
            _guard.thread = None


def _of_other_threads(handle: Callable[..., None]) -> Callable[..., None]:
    @wraps(handle)
    def handled(logger: logging.Logger, record: logging.LogRecord) -> None:
        if _guard.thread != threading.get_ident():
            handle(logger, record)

    return handled


def _reading_only(original: Callable[..., Any]) -> Callable[..., Any]:
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if is_for_writing(mode) and _guard.thread == threading.get_ident():
            raise GivenUp(f"it writes a file ({file})")
        return original(file, mode, *args, **kwargs)

    return opened


def _never(*_: Any, **__: Any) -> None:
    raise GivenUp("it saves a file")


class _Nobody:
    """Replaces the run that a cell addresses by :mod:`jupyter_dtrain.api`."""

    def __getattr__(self, name: str) -> Any:
        raise GivenUp(f"it asks for `{name}` of the run")
