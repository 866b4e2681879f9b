"""All errors that this project raises, in one tree.

::

    DtrainError
    ├── UsageError          a line or a cell that cannot be understood; nothing was started
    ├── CaptureError        a value of the notebook that cannot be sent; nothing was sent
    ├── ClusterError        engines that did not start, or are gone
    ├── CellError           the user's cell raised on the engines (named like the original error)
    ├── DataError           rows that cannot be read
    ├── StoreError          the record of runs cannot be read or written; training is not affected
    │   └── NoRunsError     nothing was written to it yet
    ├── CheckpointError     a checkpoint that cannot be written or read
    └── ProtocolError       a message from another version of this project

    CellInterrupted         a keyboard interrupt, like Python's own not an `Exception`

Each message says what happened, with which name, rank or line, and what to do next.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TypeVar


class DtrainError(Exception):
    """Base of all errors of this project.

    Errors about what the user typed are shown without a Python traceback, as its frames are this project's and would only hide the message.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(DtrainError):
    """A magic line or a cell that cannot be understood."""


class CaptureError(DtrainError):
    """A value that cannot be sent to the engines.

    Parameters
    ----------
    message : str
        What cannot be sent, why, and what to do.
    name : str
        Name of the value in the notebook.
    """

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class ClusterError(DtrainError):
    """Engines that did not start, stopped answering, or died."""


class DataError(DtrainError):
    """Rows of a file or a collection that cannot be read or have changed. The message names the file and the row group."""


class StoreError(DtrainError):
    """The record of runs on disk cannot be read or written. A run continues without it."""


class NoRunsError(StoreError):
    """Nothing was written to the record of runs yet, for example while another kernel writes its first run."""


class CheckpointError(DtrainError):
    """A checkpoint that cannot be written, or is damaged."""


class ProtocolError(DtrainError):
    """A message with a version or type that this side does not know."""


class CellError(DtrainError):
    """The user's cell raised on the engines.

    Instances are created through :meth:`of`. Their class is named after the original exception and, for a builtin exception, derives from
    it too. So the notebook reports ``ValueError`` for a ``ValueError``.

    Parameters
    ----------
    message : str
        The original message.
    lines : list of str
        The traceback to show: the cell's own frames only.
    ranks : list of int
        Ranks that raised it.
    """

    def __init__(self, message: str, *, lines: list[str], ranks: list[int]) -> None:
        super().__init__(message)
        self.lines = lines
        self.ranks = ranks

    def __str__(self) -> str:
        return str(self.args[0])  # the `str` of a `KeyError` would add quotes

    def _render_traceback_(self) -> list[str]:
        return self.lines

    @classmethod
    def of(cls, name: str, message: str, *, lines: list[str], ranks: list[int]) -> CellError:
        """Return an error named `name` that is also an instance of the builtin of that name, if there is one."""
        import builtins

        original = getattr(builtins, name, None)
        bases: tuple[type, ...] = (cls,)
        # IPython formats instances of SyntaxError from attributes that describe one source file.
        if isinstance(original, type) and issubclass(original, Exception) and not issubclass(original, SyntaxError):
            bases = (cls, original)
        try:
            error: CellError = type(name, bases, {"__module__": cls.__module__})(message, lines=lines, ranks=ranks)
        except TypeError:  # a builtin with its own layout or constructor (UnicodeDecodeError)
            error = type(name, (cls,), {"__module__": cls.__module__})(message, lines=lines, ranks=ranks)
        return error


class CellInterrupted(KeyboardInterrupt):
    """The user has interrupted a cell on the engines. Shown as a ``KeyboardInterrupt``.

    Parameters
    ----------
    lines : list of str
        Lines to show: where the ranks were, or what happened to the run.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def _render_traceback_(self) -> list[str]:
        return self.lines


CellInterrupted.__name__ = KeyboardInterrupt.__name__


_Raised = TypeVar("_Raised", bound=BaseException)


def picklable(error: _Raised, instead: Callable[[str], _Raised]) -> _Raised:
    """Return `error` if it can be pickled, else an error of the class `instead` with its name and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return instead(f"{type(error).__name__}: {error}")
    return error
