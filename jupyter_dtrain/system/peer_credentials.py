"""Return the user at the other end of a Unix socket, as the operating system reports it, which cannot be forged.

On Linux this is the process that called ``connect`` or ``listen``.
"""

from __future__ import annotations

import os
import socket
import struct

_LINUX = struct.Struct("3i")  # process, user and group
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1  # of macOS; Python has no names for them
_XUCRED = struct.Struct("IIh16I")  # version, user, number of groups, groups


def peer_user(connection: socket.socket) -> int:
    """Return the user id at the other end; raise an `OSError` if it is unknown."""
    if hasattr(socket, "SO_PEERCRED"):
        return int(_LINUX.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX.size))[1])
    return int(_XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size))[1])


def is_own(connection: socket.socket) -> bool:
    """Return whether a process of the same user is at the other end."""
    return peer_user(connection) == os.getuid()
