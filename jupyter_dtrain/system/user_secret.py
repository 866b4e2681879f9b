"""Keep the user's secret, which signs what this user has written; it is in Jupyter's data folder, as that of notebooks is."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import tempfile
from pathlib import Path

from ..errors import CheckpointError

SIZE = 32  # bytes


def user_secret() -> bytes:
    """Return the user's secret; create it if it does not exist.

    Raises
    ------
    CheckpointError
        It cannot be created or read, or other users can read it or own it.
    """
    from jupyter_core.paths import jupyter_data_dir

    path = Path(jupyter_data_dir()) / "jupyter_dtrain" / "secret"
    try:
        found = _read(path)
        if len(found) != SIZE:  # missing, or truncated by a power loss
            _write(path, found)
            found = _read(path)
    except OSError as error:
        raise CheckpointError(
            f"The signing secret {path} cannot be created or read: {error.strerror or error}. "
            "Set JUPYTER_DATA_DIR to a folder that you can write to."
        ) from None
    if len(found) != SIZE:
        raise CheckpointError(f"The signing secret {path} is damaged: remove it, and a new one is created.")
    return found


def _read(path: Path) -> bytes:
    """Return the contents of the file at `path`, empty if it does not exist; raise a `CheckpointError` if it is not private to the user."""
    try:
        # Follow no link, and do not block on a FIFO.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid():
            raise CheckpointError(f"{path} is not your file, but should hold your signing secret: remove it.")
        if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CheckpointError(
                f"Others can read your signing secret {path}. If nobody has, `chmod 600` fixes that; "
                "otherwise remove it: a new one is created, and what the old one signed is read with --trust only."
            )
        return file.read(SIZE + 1)


def _write(path: Path, damaged: bytes) -> None:
    """Create a secret at `path` atomically, without overwriting one that was just created. `damaged` is the invalid content to replace."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(handle)  # otherwise a power loss may leave the name without the bytes
        if damaged or path.exists():
            if hmac.compare_digest(_read(path), damaged):
                Path(name).replace(path)
        else:
            os.link(name, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        pass
    finally:
        Path(name).unlink(missing_ok=True)
