"""Connections of a group between hosts: each rank knows by the others' signed lists which of them are a rank's."""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from jupyter_dtrain.engine.comm import links
from jupyter_dtrain.engine.comm.sockets import own_sockets

KEY = b"of the run"


@pytest.fixture
def caller(monkeypatch) -> Iterator[tuple[Any, dict[str, Any], socket.socket]]:
    """Yield rank 0's store, what it checks, and another's connection to its port."""
    monkeypatch.setattr(links, "LIMIT", timedelta(milliseconds=200))
    before = {links.pair_of(own) for own in own_sockets()}
    links.authenticate(KEY)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        accepted, _ = server.accept()
        with accepted:
            asked = {"rank": 0, "size": 2, "ports": {server.getsockname()[1]}, "before": before | {links.pair_of(connection)}}
            yield dist.HashStore(), asked, connection  # type: ignore[attr-defined]
    links.authenticate(None)


def said_by_rank_1(store: Any, pairs: list[Any], key: bytes = KEY) -> None:
    told = json.dumps(pairs).encode()
    store.set("links/1", hmac.digest(key, b"1 " + told, "sha256") + told)


def is_shut(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def test_a_connection_of_a_rank_is_kept(caller):
    store, asked, connection = caller
    said_by_rank_1(store, [links.pair_of(connection)])
    links.check(store, **asked)
    assert not is_shut(connection)
    links.shut_down()
    assert is_shut(connection)


@pytest.mark.parametrize("rank_1_comes", [True, False])
def test_a_connection_of_nobody_is_ended_even_if_it_took_the_place_of_a_rank(caller, rank_1_comes):
    store, asked, connection = caller
    if rank_1_comes:
        said_by_rank_1(store, [])
    with pytest.raises(ConnectionError, match=r"A process at 127\.0\.0\.1 has connected to a port of this run's rendezvous"):
        links.check(store, **asked)
    assert is_shut(connection)


def test_a_list_that_is_not_signed_by_a_rank_counts_for_nothing(caller):
    store, asked, connection = caller
    said_by_rank_1(store, [links.pair_of(connection)], key=b"another")
    with pytest.raises(ConnectionError, match="connections of rank 1 has a wrong signature"):
        links.check(store, **asked)


def test_a_rank_that_does_not_come_is_not_waited_for_forever(caller):
    store, asked, _ = caller
    asked["ports"] = set()
    with pytest.raises(dist.DistStoreError):
        links.check(store, **asked)
