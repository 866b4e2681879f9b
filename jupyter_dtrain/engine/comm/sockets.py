"""TCP sockets of this process, including those that only gloo knows."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import psutil


def address_of(interface: str) -> str:
    """Return this host's IPv4 address at a network interface.

    Raises
    ------
    OSError
        The interface has none.
    """
    for found in psutil.net_if_addrs().get(interface, []):
        if found.family == socket.AF_INET:
            return found.address
    raise OSError(f"the network interface {interface} has no IPv4 address")


def own_sockets() -> Iterator[socket.socket]:
    """Yield this process's TCP sockets, each open until the next one."""
    if not hasattr(socket, "AF_NETLINK"):  # not Linux
        return
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - each of them is only opened once
        try:
            file = os.dup(int(name))
        except OSError:  # closed in the meantime
            continue
        try:
            own = socket.socket(fileno=file)
        except OSError:  # not a socket
            os.close(file)
            continue
        with own:
            if own.family in (socket.AF_INET, socket.AF_INET6) and own.type == socket.SOCK_STREAM:
                yield own
