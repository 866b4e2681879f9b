"""Gloo's TCP connections between ranks of one host, which have no authentication: refuse groups that another user has connected to.

Gloo listens on a loopback port for each group, and accepts as a rank whoever sends that rank's number first. Linux tells the user of every
socket of the machine, so the peers are checked before anything is received: sums could be another user's, and object collectives unpickle
what they get. Later connections are not accepted, as all ranks are connected once a group is made.

``sock_diag(7)`` looks up one socket in microseconds; parsing ``/proc/net`` takes milliseconds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

from torch.distributed import GroupMember, PrefixStore, distributed_c10d  # type: ignore[attr-defined]  # not in torch's own list

from ...system.patches import patched
from . import links
from .sockets import own_sockets

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_HEADER = struct.Struct("=IHHII")  # length, type, flags, number, port
_REQUEST = struct.Struct("=BBBBI 2s2s 16s16s I 8s")  # family, protocol, ext, pad, states; ports, addresses, interface, cookie
_ANSWER = struct.Struct("=BBBB 48x 3I II")  # family, state, timer, retransmits; expires, queues; user, inode
_ESTABLISHED = 1
_TOO_MUCH = 1 << 16
_MAPPED = "0000000000000000FFFF0000"  # prefix of an IPv4-mapped IPv6 address in ``/proc/net``
_Address = tuple[str, int]


@contextlib.contextmanager
def guarded_groups() -> Iterator[None]:
    """Let every process group made in the ``with`` block raise a ``ConnectionError`` if another user has connected to this rank's ports."""
    make = distributed_c10d._new_process_group_helper

    @wraps(make)
    def make_guarded(*args: Any, **options: Any) -> Any:
        before, connected = _listening(), set(map(links.pair_of, own_sockets()))
        found = make(*args, **options)
        ports = _listening() - before
        if not links.is_asked_for():
            shut_out(ports)
        elif found[0] is not GroupMember.NON_GROUP_MEMBER:
            call = signature(make).bind(*args, **options).arguments
            size, rank, store = call["group_size"], call["group_rank"], call["store"]
            if size > 1:
                named = PrefixStore(f"links/{call['group_name']}", store)
                links.check(named, rank=rank, size=size, ports=ports, before=connected)
        return found

    with patched(distributed_c10d, "_new_process_group_helper", make_guarded):
        yield


def shut_out(ports: set[int]) -> None:
    """Shut down connections to the `ports` of this process that do not belong to this user.

    Raises
    ------
    ConnectionError
        There was such a connection, which gloo may have accepted as a rank.
    """
    users: set[int | None] = set()
    for own in own_sockets() if ports else ():
        with contextlib.suppress(OSError):  # the socket is not connected (any more)
            if _is_listening(own) or own.getsockname()[1] not in ports:
                continue
            user = user_of(own.getpeername()[:2], own.getsockname()[:2])
            if user != os.getuid():
                users.add(user)
                own.shutdown(socket.SHUT_RDWR)
    if users:
        known = sorted(str(user) for user in users if user is not None)
        who = f"of the user with the number {', '.join(known)}" if known else "that is gone"
        raise ConnectionError(
            f"A process {who} has connected to a port of this run's rendezvous. Nothing was read from it. "
            "Run the cell again; if that happens again, somebody on this machine tries to get into your runs."
        )


def user_of(local: _Address, remote: _Address) -> int | None:
    """Return the user ID of the connected TCP socket on this host with these addresses; ``None`` if there is none."""
    addresses = [ipaddress.ip_address(address) for address, _ in (local, remote)]
    plain = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    family = socket.AF_INET if plain[0].version == 4 else socket.AF_INET6
    ports = [port.to_bytes(2, "big") for _, port in (local, remote)]
    packed = [address.packed for address in plain]
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, *ports, *packed, 0, b"\xff" * 8)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as system:
            system.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + request)
            answer = system.recv(_TOO_MUCH)
        is_found = _HEADER.unpack_from(answer)[1] != _NLMSG_ERROR
    except OSError:  # a sandbox may forbid netlink
        is_found = False
    if not is_found:  # a kernel without the module answers that there is no such socket
        return _user_in_table([f"{_in_table(address)}:{port:04X}" for address, (_, port) in zip(plain, (local, remote), strict=True)])
    found = _ANSWER.unpack_from(answer, _HEADER.size)
    state, user, inode = found[1], found[-2], found[-1]
    return user if state == _ESTABLISHED and inode else None  # a closed socket has no inode and appears as root's


def _in_table(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return `address` in the notation of ``/proc/net``: each four bytes as a native-endian number."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(address.packed) // 4}I", address.packed))


def _user_in_table(ends: list[str]) -> int | None:
    for table in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            words = line.split()
            if [word.removeprefix(_MAPPED) for word in words[1:3]] == ends and int(words[3], 16) == _ESTABLISHED and words[9] != "0":
                return int(words[7])
    return None


def _listening() -> set[int]:
    return {own.getsockname()[1] for own in own_sockets() if _is_listening(own)}


def _is_listening(own: socket.socket) -> bool:
    return bool(own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
