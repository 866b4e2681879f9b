"""Whether the cell's own code is what asks for something of a file, and of which."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..whose import OURS, is_users

_FOLLOWING = frozenset(str(Path(__file__).with_name(name)) for name in ("asked.py", "files.py", "file_log.py", "folders.py"))


def is_within_open_folder(options: Mapping[str, Any]) -> bool:
    """Return whether the names of a call of one of `os`' functions with these `options` are no paths, as those of ``shutil.rmtree`` are."""
    return any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd"))


def asked_path(file: Any) -> str | None:
    """Return the whole path of what names a file, ``None`` where the user's code does not ask, or `file` is none."""
    # Not resolved: a link is removed and renamed as itself.
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) and _user_asks() else None  # noqa: PTH100


def _user_asks() -> bool:
    """Return whether the user's code is what calls, directly or through a library, and not this project."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            if name not in _FOLLOWING:
                return False
        elif is_users(name):
            return True
        frame = frame.f_back
    return False
