"""Calls of a model on a share of the batch write no file: what a model writes describes its batch, as what it prints does.

A call from which its behavior is learned ends before the model's code opens a file for writing, saves a tensor or logs. The model is open
then, and the full call writes. A later call that begins to write or to print ends the cell on this rank (`FoundLate`).
"""

from __future__ import annotations

import builtins
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from types import FrameType
from typing import Any, TextIO

import torch

from ...system.patches import patched
from ...system.stream_proxy import StreamProxy
from ..side_effects.asked_paths import is_for_writing, open_replaced
from ..side_effects.low_level_writes import WRITES
from ..user_frames import is_ours, is_users

_CACHES = ("_inductor", "_dynamo", "triton", "numba", "cpp_extension", "huggingface_hub", "font_manager")
"""Parts of libraries that write files of their own while a model runs."""


class Writes(BaseException):
    """A model writes a file, or logs. Not an ``Exception``, so that the model's own handlers do not catch it."""


class _Noticed(StreamProxy):
    """Standard output; raises what `why` returns before something is written to it."""

    def __init__(self, stream: TextIO, why: Callable[[], BaseException | None]) -> None:
        super().__init__(stream)
        self._why = why

    def write(self, text: str) -> int:
        if (error := self._why()) is not None:
            raise error
        return int(self._stream.write(text) or 0)


@contextmanager
def held_back() -> Iterator[None]:
    """Raise `Writes` in the ``with`` block before this thread's user code writes a file or logs."""
    thread = threading.get_ident()
    with _refused(lambda: Writes() if threading.get_ident() == thread else None):
        yield


@contextmanager
def writes_noticed(why: Callable[[], BaseException | None]) -> Iterator[None]:
    """Raise what `why` returns, unless ``None``, in the ``with`` block before the user's code writes a file, logs or prints."""
    with _refused(why), redirect_stdout(_Noticed(sys.stdout, why)):
        yield


@contextmanager
def _refused(why: Callable[[], BaseException | None]) -> Iterator[None]:
    def before(original: Callable[..., Any], writes: Callable[..., bool]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            error = why()
            if error is not None and writes(*args, **kwargs) and _is_of_user():
                raise error
            return original(*args, **kwargs)

        return call

    with ExitStack() as stack:
        stack.enter_context(open_replaced(before(builtins.open, _opens_for_writing)))
        stack.enter_context(patched(os, "open", before(os.open, _opens_by_flags)))
        stack.enter_context(patched(torch, "save", before(torch.save, _always)))
        stack.enter_context(patched(logging.Logger, "handle", before(logging.Logger.handle, lambda _, record: is_users(record.pathname))))
        yield


def _opens_for_writing(_file: Any, mode: Any = "r", *_: Any, **__: Any) -> bool:
    return isinstance(mode, str) and is_for_writing(mode)


def _opens_by_flags(_path: Any, flags: int, *_: Any, **__: Any) -> bool:
    return bool(flags & WRITES)


def _always(*_: Any, **__: Any) -> bool:
    return True


def _is_of_user() -> bool:
    """Return whether the user's code makes the call, directly or through a library that keeps no cache of its own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _CACHES):
            return False
        if is_users(name):
            return True
        if is_ours(name) and name.endswith("_call.py"):  # that of the model
            return False
        frame = frame.f_back
    return False
