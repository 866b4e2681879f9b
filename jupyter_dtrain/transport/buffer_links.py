"""Buffers of a folder that are stored elsewhere: hard links to another folder, and symbolic links to an overflow disk."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from ..system.atomic_files import write_whole
from ..system.resources import OVERFLOW


class Overflow:
    """The overflow disk of a folder in shared memory, if there is one. The folder has a symbolic link to each buffer there.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def is_there(self) -> bool:
        """Whether there is such a disk."""
        return (self._folder / OVERFLOW).is_dir()

    def write(self, key: str, buffer: memoryview) -> None:
        """Store `buffer` under `key` on the disk, and link it from the folder."""
        file = (self._folder / OVERFLOW).resolve() / key
        write_whole(file, buffer)
        self._link(file)

    def take(self, file: Path) -> None:
        """Move a file from the overflow disk of another folder to this one."""
        self._link(Path(shutil.move(file, (self._folder / OVERFLOW).resolve())))

    def _link(self, file: Path) -> None:
        """Link `file` from the folder, under its own name."""
        with suppress(FileExistsError):  # another process was faster
            (self._folder / file.name).symlink_to(file)

    def file_of(self, key: str) -> Path:
        """Return the file that the link `key` leads to; raise a `FileNotFoundError` if the link leads outside the overflow disk."""
        path = self._folder / key
        with suppress(OSError):
            target = path.readlink()
            if target == (self._folder / OVERFLOW).resolve() / key:
                return target
        raise FileNotFoundError(errno.ENOENT, "No buffer is stored there", str(path))


def try_link(stored: Path, target: Path) -> bool:
    """Hard-link `stored` as `target`; return whether `target` exists now, perhaps because another process was faster."""
    if stored.is_symlink():  # to an overflow disk, which is deleted with its folder
        return False
    try:
        os.link(stored, target)
    except FileExistsError:
        return True
    except OSError:  # `stored` does not exist, or was removed meanwhile
        return False
    return True
