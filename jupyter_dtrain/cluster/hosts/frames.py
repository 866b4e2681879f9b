"""Frames between the notebook's process and a host's agent: a JSON header, followed by bytes.

Nothing is unpickled, so neither side can run code on the other. A shell's start-up files may print before the agent does, so everything
before `MAGIC` is ignored.
"""

from __future__ import annotations

import json
import struct
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from ...errors import ClusterError

MAGIC = b"\0jupyter-dtrain agent\n"
VERSION = 1
"""Version of the frames. An agent of another version is refused first."""
CHUNK = 1 << 20
"""Bytes of a file in one frame; heartbeats go in between."""
BEAT = 0.5
"""Seconds between heartbeats, in both directions."""
FENCE = 6.0
"""Seconds of silence after which an agent ends its engines. Less than `LEASE`, so that a rank never has two engines."""
LEASE = 8.0
"""Seconds of silence after which the notebook treats a host as lost."""
IDLE = 120.0
"""Replaces both while no cell runs on the engines, as the notebook's own work may block its process."""
LONGEST = 1 << 26
"""Most bytes of a header, or of the bytes after it."""

_SIZES = struct.Struct(">II")
Header = dict[str, Any]


def write_frame(file: BinaryIO, header: Header, payload: bytes | memoryview = b"") -> None:
    """Write one frame; the caller must have exclusive access to `file`."""
    encoded = json.dumps(header).encode()
    file.write(_SIZES.pack(len(encoded), len(payload)) + encoded)
    if len(payload):
        file.write(payload)
    file.flush()


def read_frame(file: BinaryIO) -> tuple[Header, bytes] | None:
    """Return the next frame, ``None`` at the end of `file`.

    Raises
    ------
    ClusterError
        The data is no frame.
    """
    sizes = file.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    length, rest = _SIZES.unpack(sizes)
    if max(length, rest) > LONGEST:
        raise ClusterError(
            "A message from a host's agent is malformed: another program, such as a login script, has written to its output."
        )
    encoded, payload = file.read(length), file.read(rest)
    return None if len(encoded) < length or len(payload) < rest else (json.loads(encoded), payload)


def checked_name(name: str) -> PurePosixPath:
    """Return the path of a file below the folder of buffers; raise a `ClusterError` if it leads outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ClusterError(f"{name!r} is no file of a cluster.")
    return path
