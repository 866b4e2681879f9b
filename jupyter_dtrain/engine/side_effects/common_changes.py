"""Renaming and removing files and folders of the notebook: rank 0 does it first, and the other ranks get its result or its error.

After that, they find nothing at the old name, and everything at the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from ...serialization import late_bound
from ...system.patches import patched
from . import asked_paths
from .asked_paths import is_within, is_within_open_folder
from .common_answers import PATHLIB, CommonAnswers

_BETWEEN = PATHLIB | {__file__, asked_paths.__file__, late_bound.__file__, shutil.__file__}
_CHANGES = (
    (os, "rename", 2),
    (os, "replace", 2),
    (os, "remove", 1),
    (os, "unlink", 1),
    (os, "rmdir", 1),
    (shutil, "rmtree", 1),
)
"""Owner, name and number of path arguments of each function."""


class CommonChanges:
    """The changes of one run.

    Parameters
    ----------
    answers : CommonAnswers
    folder : str
        The notebook's folder, with a separator at its end.
    """

    def __init__(self, answers: CommonAnswers, folder: str) -> None:
        self._answers, self._folder = answers, folder

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let rank 0 go first in the ``with`` block."""
        with ExitStack() as stack:
            for owner, name, num_paths in _CHANGES:
                stack.enter_context(patched(owner, name, self._first(f"to `{name}`", getattr(owner, name), num_paths)))
            yield

    def _first(self, what: str, original: Callable[..., Any], num_paths: int) -> Callable[..., Any]:
        @wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            paths = args[:num_paths]
            together = len(paths) == num_paths and all(is_within(self._folder, path) for path in paths)
            if not together or is_within_open_folder(kwargs) or not self._answers.all_ask(through=_BETWEEN):
                return original(*args, **kwargs)
            self._answers.of_first(what, lambda: original(*args, **kwargs), changes=True)
            return None if self._answers.is_first else original(*args, **kwargs)

        return change
