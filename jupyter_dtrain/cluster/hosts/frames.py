"""What the notebook's process and a host's agent say to each other: a header in JSON, and bytes behind it.

Nothing is unpickled, so that neither side can make the other run what it says. A shell's start-up files may print before the agent does:
what comes before `MAGIC` is no frame.
"""

from __future__ import annotations

import json
import struct
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from ...errors import ClusterError

MAGIC = b"\0jupyter-dtrain agent\n"
VERSION = 1
"""Of what is said. An agent of another one is refused before anything else."""
CHUNK = 1 << 20
"""Bytes of a file in one frame: signs of life go between two."""
BEAT = 0.5
"""Seconds between signs of life, either way."""
FENCE = 6.0
"""Seconds of silence after which an agent ends its engines. Less than `LEASE`: there are never two engines of one rank."""
LEASE = 8.0
"""Seconds of silence after which the notebook takes a host for lost."""
IDLE = 120.0
"""Seconds instead of either while no cell runs on the engines: the notebook's own work may keep its process from saying anything."""
LONGEST = 1 << 26
"""Bytes of a header or of what follows, at most."""

_SIZES = struct.Struct(">II")
Header = dict[str, Any]


def write_frame(file: BinaryIO, header: Header, payload: bytes | memoryview = b"") -> None:
    """Write one frame; the caller has `file` to itself."""
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
        What comes is no frame.
    """
    sizes = file.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    length, rest = _SIZES.unpack(sizes)
    if max(length, rest) > LONGEST:
        raise ClusterError("A message of a host's agent cannot be parsed: something else has written to its output.")
    encoded, payload = file.read(length), file.read(rest)
    return None if len(encoded) < length or len(payload) < rest else (json.loads(encoded), payload)


def checked_name(name: str) -> PurePosixPath:
    """Return the path of a file below the folder of buffers; a `ClusterError`: it leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ClusterError(f"{name!r} is no file of a cluster.")
    return path
