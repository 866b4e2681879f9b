"""Buffers of a folder that lie elsewhere: in another folder of the same file system, or on a disk, where there was no room for them."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from ..system.atomic_files import write_whole
from ..system.resources import OVERFLOW


class Overflow:
    """The disk that is at hand for a folder in shared memory, if there is one: a link in the folder leads to each buffer there.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def is_there(self) -> bool:
        """Whether there is one."""
        return (self._folder / OVERFLOW).is_dir()

    def write(self, key: str, buffer: memoryview) -> None:
        """Store `buffer` under `key`."""
        file = (self._folder / OVERFLOW).resolve() / key
        write_whole(file, buffer)
        self._link(file)

    def take(self, file: Path) -> None:
        """Take over what lies on the disk of another folder."""
        self._link(Path(shutil.move(file, (self._folder / OVERFLOW).resolve())))

    def _link(self, file: Path) -> None:
        """Let what lies in `file` be stored in the folder, under its name."""
        with suppress(FileExistsError):  # another process was faster
            (self._folder / file.name).symlink_to(file)

    def file_of(self, key: str) -> Path:
        """Return the file that a link of this name leads to; a `FileNotFoundError`: it leads elsewhere, and is none of ours."""
        path = self._folder / key
        with suppress(OSError):
            target = path.readlink()
            if target == (self._folder / OVERFLOW).resolve() / key:
                return target
        raise FileNotFoundError(errno.ENOENT, "No buffer is stored there", str(path))


def try_link(stored: Path, target: Path) -> bool:
    """Return whether `target` is there now without a copy, as what lies in another folder or because another process was faster."""
    if stored.is_symlink():  # to a disk, from which it goes with the folder
        return False
    try:
        os.link(stored, target)
    except FileExistsError:
        return True
    except OSError:  # it is not there, or gone meanwhile
        return False
    return True
