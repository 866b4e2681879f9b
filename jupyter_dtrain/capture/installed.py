"""Where Python's own library lies, and what is installed beside it: not the user's code."""

from __future__ import annotations

import functools
import os
import sysconfig


@functools.cache
def installed_folders() -> tuple[str, ...]:
    """Return the beginnings of the names of files in there, links followed and not."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{path}{os.sep}" for path in libraries | {os.path.realpath(path) for path in libraries})
