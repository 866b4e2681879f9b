"""Attribute warnings to the user's lines, and hide those that do not concern the cell."""

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

from ...capture.warning_filters import forget_classes, put_filters
from ...system.patches import patched
from ..user_frames import is_ours

_OURS = (
    "Dropout mask should only be used for testing",  # from attention, where we pass a dropout mask
    "Grad strides do not match bucket view strides",  # one more copy, in our own reducer
)
"""Warnings of PyTorch's that are caused by how a cell is run."""


@contextmanager
def warnings_of_callers() -> Iterator[None]:
    """Let warnings raised below a function of this project name the line that called it; hide those in `_OURS`."""
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
        # Warn again for the caller's line, as Python records for each line whether a warning was shown.
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
            with suppress(ValueError):  # the cell has removed it
                filters.remove(one)
        forget_classes()


@contextmanager
def filters_kept() -> Iterator[None]:
    """Undo what imports in the ``with`` block do to the filters: in the notebook they have done so before."""
    before = list(warnings.filters)
    try:
        yield
    finally:
        put_filters(before)


def _is_between(filename: str) -> bool:
    """Return whether a file's frames are skipped in the search for a caller: this project's, and those of ``torch.overrides``."""
    return is_ours(filename) or filename == torch.overrides.__file__


def _caller(filename: str) -> FrameType | None:
    """Return the frame that called the running function of `filename`, not counting frames of this project."""
    stack = (frame for frame, _ in walk_stack(sys._getframe(2)))
    behind = dropwhile(lambda frame: frame.f_code.co_filename != filename, stack)
    before = None
    for frame in behind:
        if not _is_between(frame.f_code.co_filename):
            # A PyTorch function that dispatches through `handle_torch_function` is called again from there: return its first caller.
            return frame.f_back if before is not None and before.f_code.co_name == handle_torch_function.__name__ else frame
        before = frame
    return None
