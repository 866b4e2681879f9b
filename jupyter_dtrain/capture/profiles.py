"""Profiles that ``torch.profiler`` has taken: their tables and their traces can be read where they were not taken.

What holds the trace is PyTorch's own and cannot be pickled, and it gives its text once. So the events are read from it and its text
is kept.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

_PYTORCHS = "torch.autograd.profiler"
_LEVEL = 1  # of compression: a trace shrinks to a tenth even so


class Trace:
    """What a profile has recorded, in the place of PyTorch's own.

    Parameters
    ----------
    result : torch._C._autograd._ProfilerResult or None
    text : bytes, optional
        What there is of one of another process, compressed.
    refused : str
        Why that has no text.
    """

    def __init__(self, result: Any, text: bytes | None = None, refused: str = "") -> None:
        self._result, self._text, self._refused = result, text, refused

    def save(self, path: str) -> None:
        """Write the trace as JSON for Chrome's tracing and Perfetto, a `RuntimeError` where the result itself has written it before."""
        self._read()
        if self._text is None:
            raise RuntimeError(self._refused)
        Path(path).write_bytes(zlib.decompress(self._text))

    def _read(self) -> None:
        if self._text is not None or self._refused:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            try:
                self._result.save(str(path))
            except RuntimeError as error:
                self._refused = str(error)
            else:
                self._text = zlib.compress(path.read_bytes(), _LEVEL)

    def __getattr__(self, name: str) -> Any:
        result = vars(self).get("_result")
        if result is None:
            raise AttributeError(f"a profile that was taken by another process has its events and its trace, and no {name!r}")
        return getattr(result, name)

    def __reduce__(self) -> Any:
        self._read()
        return Trace, (None, self._text, self._refused)


def reduced_profile(obj: Any) -> Any:
    """Return how a profile reduces, ``NotImplemented`` for any other object.

    Raises
    ------
    TypeError
        It is being taken.
    """
    if type(obj).__name__ != "profile" or type(obj) is not getattr(sys.modules.get(_PYTORCHS), "profile", None):
        return NotImplemented
    if not isinstance(obj.kineto_results, Trace):
        if obj.kineto_results is None and getattr(obj, "entered", False):
            raise TypeError("cannot pickle 'profile' object: it is being taken")
        with contextlib.suppress(RuntimeError):  # who wants a trace only has no events
            _ = obj.function_events  # which are read when they are first asked for
        if obj.kineto_results is not None:
            obj.kineto_results = Trace(obj.kineto_results)
    return NotImplemented
