"""A file that tells which hosts have this process's folder as well: a network file system, or another path to this one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def folder_token() -> Iterator[Path | None]:
    """Leave a file here until the end of the ``with`` block; ``None`` where none can be written."""
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
