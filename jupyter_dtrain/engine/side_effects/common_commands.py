"""Shell commands of the cell: rank 0 runs them once, and all ranks get the result.

A command may write files or fetch data. Run by every rank, it would do so several times. Handled are calls that return when the command
has ended: ``subprocess.run`` and its like, ``os.system``, ``!``, and copies of folders and archives. On several hosts each rank runs
them, as a command may be for its host, such as a download to its disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from IPython.core import interactiveshell
from IPython.core.getipython import get_ipython

from ...system.patches import patched
from ..comm.process_group import shared_memory
from .common_answers import CommonAnswers

_RUN: tuple[Any, ...] = (
    (subprocess, ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")),
    (os, ("system",)),
    (shutil, ("copytree", "make_archive", "unpack_archive")),
)
_OF_SHELLS = ("system", "getoutput", "get_output_error_code")
"""Methods by which IPython's shell runs a command, with names expanded in it."""


class CommonCommands:
    """Lets rank 0 alone run the commands of the cell's own code.

    Parameters
    ----------
    answers : CommonAnswers
    on_run : callable, optional
        Called on other ranks after a command, which may have created files that the cell had removed.
    """

    def __init__(self, answers: CommonAnswers, *, on_run: Callable[[], None] | None = None) -> None:
        self._answers, self._on_run = answers, on_run

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions that run a command, in the ``with`` block."""
        shells = {interactiveshell, sys.modules[type(get_ipython()).__module__]}  # whose methods run the lines with a `!`
        of_shells = [(shell, _OF_SHELLS) for shell in shells if hasattr(shell, "__file__")]
        self._through = frozenset((__file__, *(str(shell.__file__) for shell, _ in of_shells)))
        with ExitStack() as stack:
            for owner, names in (*_RUN, *of_shells):
                for name in names:
                    if hasattr(owner, name):
                        stack.enter_context(patched(owner, name, self._once(f"{owner.__name__}.{name}", getattr(owner, name))))
            yield

    def _once(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if _writes_to_files(kwargs) or shared_memory() is None or not self._answers.all_ask(through=self._through):
                return original(*args, **kwargs)
            try:
                return self._answers.of_first(f"to run `{name}`", lambda: original(*args, **kwargs), changes=True)
            finally:
                if self._on_run is not None:
                    self._on_run()

        return run


def _writes_to_files(options: dict[str, Any]) -> bool:
    """Return whether a command writes to files that the cell has opened: each rank has its own of these."""
    return any(hasattr(options.get(name), "fileno") for name in ("stdout", "stderr"))
