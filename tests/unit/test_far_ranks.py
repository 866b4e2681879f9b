"""Ranks of several hosts, here in one process: what they read of each other, and what becomes of it when one of them leaves."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jupyter_dtrain.engine.comm.connecting import OneHost, SeveralHosts
from jupyter_dtrain.engine.comm.host_peers import HostPeers
from jupyter_dtrain.engine.comm.peer_files import PeerFile
from jupyter_dtrain.engine.comm.rank_server import call
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory

LIMIT = timedelta(seconds=20)
KEY = b"of these ranks"


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as threads:
        started = [threads.submit(one) for one in calls]
        return [one.exception(LIMIT.total_seconds()) or one.result() for one in started]


def connectors(world_size: int) -> tuple[Any, list[SeveralHosts]]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    made = [
        lambda rank=rank: SeveralHosts(store, "127.0.0.1", KEY, rank=rank, world_size=world_size, timeout=LIMIT)
        for rank in range(world_size)
    ]
    return store, at_once(*made)


@pytest.fixture
def pair() -> Iterator[tuple[list[SeveralHosts], list[HostPeers]]]:
    store, made = connectors(2)
    joined = [lambda rank=rank: made[rank].peers(store, rank=rank, ranks=(0, 1), size=SharedMemory.SIZE, timeout=LIMIT) for rank in (0, 1)]
    yield made, at_once(*joined)
    for one in made:
        one.close()


@pytest.fixture
def file(pair, tmp_path: Path) -> PeerFile:
    """A file of rank 1, for rank 0."""
    _, peers = pair
    (tmp_path / "file").write_bytes(bytes(range(200)))
    with (tmp_path / "file").open() as own:
        files, _ = at_once(*[lambda one=one: one.open_files(own.fileno()) for one in peers])
    found: PeerFile = files[1]
    return found


def read(file: PeerFile, size: int, offset: int) -> bytes:
    found = bytearray(size)
    file.read(memoryview(found), offset)
    return bytes(found)


def test_a_file_is_read_in_parts_and_not_beyond_its_end(file):
    assert read(file, 3, 5) == bytes([5, 6, 7])
    assert read(file, 0, 5) == b""
    with pytest.raises(RuntimeError, match="rank 1"):
        read(file, 3, 198)
    assert read(file, 3, 197) == bytes([197, 198, 199]), "another connection is made"


def test_a_file_that_was_given_back_is_not_read(pair, file):
    file.close()
    file.close()  # there is nothing left to give back
    server = pair[0][1]._server
    with server._changed:
        assert server._changed.wait_for(lambda: 1 not in server._files, LIMIT.total_seconds())
    with pytest.raises(RuntimeError, match="rank 1"):
        read(file, 3, 5)


def test_a_forked_process_takes_no_connections_and_no_files_with_it(file):
    assert read(file, 3, 5) == bytes([5, 6, 7])
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert read(file, 3, 6) == bytes([6, 7, 8])


def test_who_is_cut_off_neither_waits_nor_reads_nor_calls(pair, file):
    (connector, _), (peers, other) = pair
    assert read(file, 3, 5) == bytes([5, 6, 7])
    cutting = threading.Timer(0.1, connector.cut)
    cutting.start()
    error, others = at_once(lambda: peers.receive(4), lambda: other.receive(4))
    cutting.join()
    assert str(error) == "Connection with rank 1: it has left."
    assert str(others) == "Connection with rank 0: it has left."
    with pytest.raises(RuntimeError, match="Connection with rank 1: it has left"):
        read(file, 3, 5)
    with pytest.raises(ConnectionError, match="this rank leaves"):
        connector.call(1, "files")
    file.close()  # which tells nobody


def test_who_has_left_gets_no_message(pair):
    both, peers = pair
    boxes = at_once(*[lambda one=one, to=to: to.mailbox(SharedMemory(one), (0, 1)) for to, one in zip(both, peers, strict=True)])
    boxes[0].send(1, "heard", [torch.ones(2)])
    heard: list[Any] = []
    boxes[1].wait(lambda: heard.extend(boxes[1].received()), lambda: bool(heard))
    assert [(rank, message, [tensor.tolist() for tensor in tensors]) for rank, message, tensors in heard] == [(0, "heard", [[1.0, 1.0]])]
    both[1].cut()

    def send_unheard() -> None:
        for _ in range(100):  # the first goes nowhere
            boxes[0].send(1, "unheard", [torch.ones(1 << 16)])

    with pytest.raises(RuntimeError, match="Connection with rank 1: it has left"):
        send_unheard()


def test_what_a_rank_that_has_left_need_not_keep_is_told_nobody(pair, file):
    pair[0][1].close()
    file.close()
    with pytest.raises(RuntimeError, match="Connection with rank 1: it has left"):
        read(file, 3, 5)


def test_another_answer_than_that_of_the_rank_is_no_file_of_it(pair, tmp_path):
    (peers, other) = pair[1]
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as own:
        error, _ = at_once(lambda: peers.open_files(own.fileno()), lambda: other.send(bytes(12)))
    assert str(error) == "Connection with rank 1: it has left."


def test_some_of_the_ranks_that_are_on_one_host_share_its_memory():
    store, made = connectors(3)
    joined = [lambda rank=rank: made[rank].peers(store, rank=rank, ranks=(0, 1), size=64, timeout=LIMIT) for rank in (0, 1)]
    near = at_once(*joined)
    assert not any(isinstance(one, HostPeers) for one in near)
    near[0].memory[0][:4] = b"seen"
    assert near[1].memory[0][:4] == b"seen"
    for one in (*near, *made):
        one.close()


def test_a_rank_that_does_not_come_is_not_waited_for_forever():
    store, soon = dist.HashStore(), timedelta(milliseconds=200)  # type: ignore[attr-defined]
    with pytest.raises(dist.DistStoreError):
        SeveralHosts(store, "127.0.0.1", KEY, rank=0, world_size=2, timeout=soon)
    host, port = json.loads(store.get("server/0"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port))
    store, made = connectors(3)
    with pytest.raises(TimeoutError, match=r"rank 2 has not come within 0\.2 s"):
        made[1].peers(store, rank=1, ranks=(0, 1, 2), size=64, timeout=soon)
    for one in made:
        one.close()


def test_what_ends_the_connection_instead_of_an_answer_has_left():
    def hear_and_leave():
        with server.accept()[0] as connection:
            connection.recv(1 << 10)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hear_and_leave, daemon=True).start()
        with pytest.raises(ConnectionError, match=f"What answers at 127.0.0.1:{server.getsockname()[1]} has left"):
            call(server.getsockname(), key=KEY, rank=0, purpose="files", limit=LIMIT)


def test_ranks_of_one_host_are_not_called():
    with pytest.raises(ConnectionError, match="rank 1 is on this host"):
        OneHost().call(1, "files")
