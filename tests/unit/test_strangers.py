"""The user of a connected socket, as the kernel tells it by ``sock_diag`` or in ``/proc/net/tcp``."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from jupyter_dtrain.engine.comm import strangers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the user of each socket")
NO_PROTOCOL = 254  # for which the kernel has no module: it answers as if there were no such socket


@pytest.fixture(params=["127.0.0.1", "::1"])
def connected(request) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


@pytest.mark.parametrize("how", ["as it is", "no module", "no netlink"])
def test_the_user_of_a_connection_is_found(connected, how, monkeypatch):
    client, accepted = connected
    ends = client.getsockname()[:2], accepted.getsockname()[:2]
    if how == "no module":
        monkeypatch.setattr(socket, "IPPROTO_TCP", NO_PROTOCOL)
    elif how == "no netlink":
        monkeypatch.setattr(strangers, "_NETLINK_SOCK_DIAG", -1)
    assert strangers.user_of(*ends) == os.getuid()
    client.close()
    assert strangers.user_of(*ends) is None
