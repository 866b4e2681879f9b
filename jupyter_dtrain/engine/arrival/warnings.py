"""The lines that warnings name, and those that the cell has no part in."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import dropwhile
from traceback import walk_stack
from types import FrameType
from typing import Any, cast

import torch.overrides
from torch.overrides import handle_torch_function

from ...system.patches import patched
from ..user_frames import is_ours

_OURS = (
    "Dropout mask should only be used for testing",  # in attention, where it is given
    "Grad strides do not match bucket view strides",  # a copy more, in a reducer that is ours
)
"""What PyTorch warns of because of how a cell is run."""


@contextmanager
def warnings_of_callers() -> Iterator[None]:
    """Let a warning that arises behind a function of this project name the line that called it, as it would without; show none of ours."""
    for message in _OURS:
        warnings.filterwarnings("ignore", message)
    filters = cast("list[Any]", warnings.filters)
    ours = filters[: len(_OURS)]
    show_as_it_is = warnings.showwarning

    def show(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        if not _is_between(filename):
            show_as_it_is(message, category, filename, lineno, *rest)
            return
        caller = _caller(filename)
        if caller is None:
            show_as_it_is(message, category, filename, lineno, *rest)
            return
        # Again, as of the caller: whether a warning is still to be shown is noted for each line.
        warnings.warn_explicit(
            message,
            category,
            caller.f_code.co_filename,
            caller.f_lineno,
            module=caller.f_globals.get("__name__"),
            registry=caller.f_globals.setdefault("__warningregistry__", {}),
        )

    try:
        with patched(warnings, "showwarning", show):
            yield
    finally:
        filters = cast("list[Any]", warnings.filters)
        for one in ours:
            with suppress(ValueError):  # the cell has taken it away
                filters.remove(one)


def _is_between(filename: str) -> bool:
    """Return whether a file may stand between a function and its caller here alone: by it PyTorch calls what takes part in an operation."""
    return is_ours(filename) or filename == torch.overrides.__file__


def _caller(filename: str) -> FrameType | None:
    """Return the frame that called, by way of the function in `filename` that is running."""
    stack = (frame for frame, _ in walk_stack(sys._getframe(2)))
    behind = dropwhile(lambda frame: frame.f_code.co_filename != filename, stack)
    before = None
    for frame in behind:
        if not _is_between(frame.f_code.co_filename):
            # A function of PyTorch's that hands itself over is called again from there: what called it first is meant.
            return frame.f_back if before is not None and before.f_code.co_name == handle_torch_function.__name__ else frame
        before = frame
    return None
