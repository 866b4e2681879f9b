"""A token file that tells which hosts share this process's folder (a network file system, or this host by another name)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_token() -> Iterator[Path | None]:
    """Create a file in the working directory within the ``with`` block; yield ``None`` if that fails."""
    token = Path(f".jupyter-dtrain-{secrets.token_hex(8)}")
    try:
        token.touch(0o600)
    except OSError:
        yield None
        return
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)
