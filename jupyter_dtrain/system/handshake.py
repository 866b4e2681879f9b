"""How both ends of a connection show that they know one key, each in its own role: what one end has shown is of no use at the other."""

from __future__ import annotations

import hmac
import secrets
import socket

SIZE = 32  # bytes of a challenge, and of what answers it


def is_known(connection: socket.socket, key: bytes, role: bytes, other: bytes) -> bool:
    """Show the other end that this one has the `key`, and return whether it has it too. Each end says its `role` with its challenge.

    Raises
    ------
    EOFError, OSError
        The other end has left, or has said nothing for as long as the socket waits.
    """
    challenge = secrets.token_bytes(SIZE)
    connection.sendall(challenge)
    its_challenge = _exactly(connection)
    connection.sendall(_answer(key, role, its_challenge, challenge))
    return hmac.compare_digest(_exactly(connection), _answer(key, other, challenge, its_challenge))


def _answer(key: bytes, role: bytes, to: bytes, beside: bytes) -> bytes:
    return hmac.digest(key, role + to + beside, "sha256")


def _exactly(connection: socket.socket) -> bytes:
    found = b""
    while len(found) < SIZE:  # a socket with a limit returns what has come so far
        part = connection.recv(SIZE - len(found))
        if not part:
            raise EOFError
        found += part
    return found
