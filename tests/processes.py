"""Processes that tests look for, by what they run: some end meanwhile, and of one that has ended nobody can say what it ran."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def find_processes(processes: Iterable[psutil.Process], word: str) -> list[psutil.Process]:
    """Return those of `processes` that have a word of their command line end with `word`."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie too
            if any(part.endswith(word) for part in process.cmdline()):
                found.append(process)
    return found
