"""Let both ends of a connection prove that they know a key. The proof includes the end's role, so the other end cannot replay it."""

from __future__ import annotations

import hmac
import secrets
import socket

SIZE = 32  # bytes of a challenge, and of its answer


def is_known(connection: socket.socket, key: bytes, role: bytes, other: bytes) -> bool:
    """Prove to the other end that this one knows the `key`, and return whether the other end knows it too, in the role `other`.

    Raises
    ------
    EOFError, OSError
        The other end has closed the connection, or the socket's timeout has expired.
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
    while len(found) < SIZE:  # a socket with a timeout returns what has arrived so far
        part = connection.recv(SIZE - len(found))
        if not part:
            raise EOFError
        found += part
    return found
