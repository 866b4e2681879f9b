"""Gloo's TCP connections between ranks on several hosts: a group uses only connections that its ranks have confirmed to each other.

Gloo accepts as a rank whoever sends that rank's number first. On one host the system tells the owner of a socket (``strangers.py``), but
not for sockets of another host. Therefore every rank publishes the connections that it has made, signed with the key of the generation, and
checks that each incoming connection is among them. Data sent over them is not encrypted: the network is trusted not to change it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from .rank_store import wait_for
from .sockets import own_sockets

LIMIT = timedelta(seconds=20)
"""Longest wait for the other ranks' lists; all ranks create a group at the same time."""
_DIGEST, _DIGEST_SIZE = "sha256", 32
_Pair = tuple[str, int, str, int]

_key: bytes | None = None
_connected: set[_Pair] = set()


def authenticate(key: bytes | None) -> None:
    """Check the connections of groups made from now on, with this key; ``None``: do not, as on one host."""
    global _key
    _key = key
    _connected.clear()


def is_asked_for() -> bool:
    """Return whether connections of new groups are checked."""
    return _key is not None


def check(store: Any, *, rank: int, size: int, ports: set[int], before: set[_Pair | None]) -> None:
    """Raise a ``ConnectionError`` and shut down the connection if one to `ports` was not made by a rank. Collective.

    Parameters
    ----------
    store : torch.distributed.Store
        The group's store.
    rank, size : int
        Rank and world size in the group.
    ports : set of int
        Ports on which this rank listens for the group.
    before : set
        Connections that existed before the group.
    """
    assert _key is not None
    new = [pair for own in own_sockets() if (pair := pair_of(own)) is not None and pair not in before]
    made = [pair for pair in new if pair[1] not in ports]
    told = json.dumps(made).encode()
    store.set(f"links/{rank}", hmac.digest(_key, b"%d " % rank + told, _DIGEST) + told)
    late: DistStoreError | None = None
    try:
        wait_for(store, [f"links/{other}" for other in range(size)], limit=LIMIT)
    except DistStoreError as error:  # a rank whose place a stranger took never gets here
        late = error
    expected: set[_Pair] = set()
    for other in range(size):
        if late is not None and not store.check([f"links/{other}"]):
            continue
        heard = store.get(f"links/{other}")
        if not hmac.compare_digest(heard[:_DIGEST_SIZE], hmac.digest(_key, b"%d " % other + heard[_DIGEST_SIZE:], _DIGEST)):
            raise ConnectionError(
                f"The list of connections of rank {other} has a wrong signature: another process can write to the rendezvous."
            )
        expected |= {(there, port, here, own) for here, own, there, port in json.loads(heard[_DIGEST_SIZE:])}
    strangers = {pair for pair in new if pair[1] in ports and pair not in expected}
    if strangers:
        _end(strangers)
        where = ", ".join(sorted({pair[2] for pair in strangers}))
        raise ConnectionError(
            f"A process at {where} has connected to a port of this run's rendezvous, and is not a rank. Nothing was read from it"
            ". Run the cell again; if that happens again, somebody in your network tries to get into your runs."
        )
    if late is not None:
        raise late
    _connected.update(new)


def shut_down() -> None:
    """Shut down all connections of groups."""
    _end(set(_connected))


def pair_of(own: socket.socket) -> _Pair | None:
    """Return the addresses of both ends; ``None`` if the socket is not connected."""
    try:
        return (*_plain(own.getsockname()), *_plain(own.getpeername()))
    except OSError:
        return None


def _plain(address: Any) -> tuple[str, int]:
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _end(pairs: set[_Pair]) -> None:
    for own in own_sockets():
        if pair_of(own) in pairs:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)
