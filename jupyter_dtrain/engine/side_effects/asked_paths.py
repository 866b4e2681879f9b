"""Whether the user's code makes a call that concerns a file, and which file."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from IPython.core import interactiveshell

from ...serialization import late_bound
from ...serialization.pickler import NOTEBOOKS_OPEN
from ...system.patches import patched
from ..user_frames import OURS, is_users

_FOLLOWING = frozenset(
    (
        *(
            str(Path(__file__).with_name(f"{name}.py"))
            for name in (
                "written_files",
                "file_journal",
                "made_folders",
                "followed_folders",
                "asked_paths",
                "low_level_writes",
                "common_folders",
                "common_databases",
                "common_changes",
                "common_answers",
                "common_commands",
            )
        ),
        str(Path(__file__).parents[1] / "forward" / "held_back.py"),
        late_bound.__file__,
    )
)


_WRITING = frozenset("wax+")


def is_for_writing(mode: str) -> bool:
    """Return whether a file is opened with this `mode` to be written to."""
    return not _WRITING.isdisjoint(mode)


def is_within_open_folder(options: Mapping[str, Any]) -> bool:
    """Return whether a call of `os` with these `options` names files relative to an open folder, as ``shutil.rmtree`` does."""
    return any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd"))


def opens_itself(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Return whether a call of ``open``, with these arguments after the mode, has an opener, which opens a file of its own choice."""
    return options.get("opener") is not None or args[5:6] not in ((), (None,))


def is_within(folder: str, path: Any) -> bool:
    """Return whether `path` is `folder`, an absolute path with a separator at its end, or lies in it. Links are not followed."""
    return isinstance(path, str | bytes | os.PathLike) and f"{os.path.abspath(os.fsdecode(path))}{os.sep}".startswith(folder)  # noqa: PTH100


def asked_path(file: Any) -> str | None:
    """Return the absolute path of `file`, ``None`` if the user's code does not make the call, or `file` names none."""
    # Not resolved: a link is removed and renamed as itself.
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) and _user_asks() else None  # noqa: PTH100


def _user_asks() -> bool:
    """Return whether the user's code makes the call, directly or through a library, and not this project."""
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


def by_path(original: Callable[..., Any], followed: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `followed`, or `original` for names relative to an open folder, whose opening was followed already."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (original if is_within_open_folder(kwargs) else followed)(*args, **kwargs)

    return call


@contextmanager
def open_replaced(opened: Callable[..., Any]) -> Iterator[None]:
    """Replace ``open`` by `opened` under all of its names in the ``with`` block.

    One for all of them: what a library pickles of it is one of its names.
    """
    with patched(builtins, "open", opened), patched(io, "open", opened), patched(interactiveshell, "io_open", opened), ExitStack() as stack:
        if isinstance(NOTEBOOKS_OPEN, FunctionType):  # libraries pickle it by value, with what it wraps
            stack.enter_context(patched(NOTEBOOKS_OPEN, "__wrapped__", opened, listed="IPython.core.interactiveshell._modified_open"))
        yield
