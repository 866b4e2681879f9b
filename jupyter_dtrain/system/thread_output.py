"""Keep what one thread prints apart, while other threads, such as one that reports progress, print as before."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any


class _OfThread(io.StringIO):
    """Collects what the present thread writes; what others write goes to `shown`."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self._shown, self._thread = shown, threading.get_ident()

    def write(self, text: str) -> int:
        """Write `text`, to where it belongs."""
        if threading.get_ident() == self._thread or self._shown is None:
            return super().write(text)
        return int(self._shown.write(text) or 0)

    def flush(self) -> None:
        """Flush what is shown, if another thread asks."""
        if threading.get_ident() != self._thread and self._shown is not None:
            self._shown.flush()


@contextmanager
def kept_apart(*, with_errors: bool = True) -> Iterator[io.StringIO]:
    """Collect what this thread prints in the ``with`` block.

    Parameters
    ----------
    with_errors : bool
        Whether standard error is discarded, instead of shown.

    Yields
    ------
    io.StringIO
        Standard output.
    """
    said = _OfThread(sys.stdout)
    with redirect_stdout(said), redirect_stderr(_OfThread(sys.stderr)) if with_errors else nullcontext():
        yield said
