"""Copies of a rank's part of a snapshot on another host: two ranks of one process, at two addresses of the loopback interface."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from jupyter_dtrain.engine.comm.connecting import OneHost, SeveralHosts
from jupyter_dtrain.engine.snapshot.replicas import PURPOSE, Replicas
from jupyter_dtrain.transport.blob_store import BlobFolder

LIMIT = timedelta(seconds=10)


def connected(*addresses: str) -> list[SeveralHosts]:
    store = HashStore()

    def connect(rank: int) -> SeveralHosts:
        return SeveralHosts(store, addresses[rank], b"key", rank=rank, world_size=len(addresses), timeout=LIMIT)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(connect, range(len(addresses))))


@pytest.fixture
def two() -> Iterator[list[SeveralHosts]]:
    found = connected("127.0.0.1", "127.0.0.2")
    yield found
    for one in found:
        one.close()


@pytest.fixture
def hosts(two, tmp_path) -> list[tuple[Path, Replicas]]:
    """The folder of each, and its copies."""
    folders = [tmp_path / name for name in ("a", "b")]
    return [(folder, Replicas(folder, connector)) for folder, connector in zip(folders, two, strict=True)]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_copy_is_on_the_next_host_and_what_is_unchanged_is_not_sent_again(hosts):
    (folder, replicas), (other, _) = hosts
    content = os.urandom(3 << 20)
    key = BlobFolder(folder / "1.blobs").put(memoryview(content))
    BlobFolder(folder / "2.blobs", [folder / "1.blobs"]).put(memoryview(content))
    assert replicas.send(folder / "1.blobs", [key]) > 0
    assert (other / "1.blobs" / key).read_bytes() == content
    replicas.send(folder / "2.blobs", [key])
    assert names(other) == {f"1.blobs/{key}", f"2.blobs/{key}"}
    assert (other / "1.blobs" / key).samefile(other / "2.blobs" / key)


def test_where_there_is_no_room_nothing_is_left_there(hosts, monkeypatch):
    (folder, replicas), (other, _) = hosts
    key = BlobFolder(folder / "1.blobs").put(memoryview(os.urandom(1 << 20)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    replicas.send(folder / "1.blobs", [key])
    assert names(other) == set()


def test_a_rank_that_has_left_is_not_waited_for(hosts, two):
    (folder, replicas), (other, _) = hosts
    key = BlobFolder(folder / "1.blobs").put(memoryview(os.urandom(1 << 20)))
    two[1].close()
    assert replicas.send(folder / "1.blobs", [key]) < 5
    assert names(other) == set()


@pytest.mark.parametrize("name", ["../x", "1.blobs/../../x", "/x", "1.blobs/.hidden", "x"])
def test_no_name_leads_out_of_the_folder(hosts, two, name):
    _, (other, _) = hosts
    with two[0].call(1, PURPOSE) as link:
        link.sendall(len(name).to_bytes(2, "little") + (1).to_bytes(8, "little") + name.encode())
        link.settimeout(5)
        assert link.recv(1) == b""
    assert not other.exists()


@pytest.mark.parametrize(
    ("addresses", "neighbours"),
    [
        (["127.0.0.1", "127.0.0.1"], [None, None]),
        (["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"], [2, 3, 0, 1]),
        (["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3"], [2, 2, 3, 0]),
    ],
)
def test_the_neighbour_is_on_the_next_host(addresses, neighbours):
    found = connected(*addresses)
    assert [one.neighbour() for one in found] == neighbours
    assert OneHost().neighbour() is None
    for one in found:
        one.close()
