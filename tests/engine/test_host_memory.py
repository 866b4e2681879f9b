"""What ranks of one host do over shared memory, those of several do over connections: the same sums, and over when one leaves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from jupyter_dtrain.engine.comm import process_group
from jupyter_dtrain.engine.comm.arena import Arena
from jupyter_dtrain.engine.comm.host_peers import HostPeers
from jupyter_dtrain.engine.comm.process_group import shared_memory
from jupyter_dtrain.engine.comm.rank_server import FILES, RankServer, call
from tests.engine.ranks import Ranks, Run
from tests.engine.test_shared_memory import (  # noqa: F401  # the same tests, over ranks of several hosts
    test_a_forked_process_that_ends_takes_nothing_with_it,
    test_a_rank_that_is_killed_frees_the_others,
    test_after_an_interrupt_no_exchange_takes_the_place_of_another,
    test_nothing_is_written_over_before_the_others_have_read_it,
    test_parts_of_different_sizes_are_there_for_all_who_want_them,
    test_tensors_of_every_kind_are_sent_and_come_as_they_are,
    test_who_is_in_an_exchange_hears_of_an_error_and_goes_on_with_the_others,
    test_who_waits_for_messages_of_a_rank_that_is_elsewhere_is_told,
)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4, spans_hosts=True) as started:
        yield started


def connection(run: Run) -> type:
    memory = shared_memory()
    assert memory is not None
    return type(memory._peers)


def test_ranks_of_several_hosts_are_connected_by_the_network(ranks):
    assert ranks.call(2, connection) == [HostPeers] * 2


def read_while_it_computes(run: Run) -> tuple[bool, int]:
    """Read another rank's memory while that is elsewhere; return whether it was right, and how many files are open at the end."""
    memory = shared_memory()
    assert memory is not None
    arena = Arena(memory, 1 << 22)
    arena.own(0, 1 << 22).fill_(run.rank + 1)
    memory.barrier(1)
    found = torch.full((1 << 22,), 2, dtype=torch.uint8)
    if run.rank == 0:
        arena.read(1, 0, found.zero_())  # which waits for this one
    memory.barrier(2)
    del arena
    server: RankServer = process_group._connector._server  # type: ignore[union-attr]
    with server._changed:
        server._changed.wait_for(lambda: not server._files, 20)
    return bool((found == 2).all()), len(server._files)


def test_memory_is_read_while_its_rank_is_elsewhere_and_given_back_when_nobody_needs_it(ranks):
    assert ranks.call(3, read_while_it_computes) == [(True, 0)] * 3


def strangers(run: Run) -> list[str]:
    """Return what becomes of those who call a rank without its key."""
    address = process_group._connector._server.address  # type: ignore[union-attr]
    found = []
    with socket.create_connection(address), pytest.raises(ConnectionError):
        call(address, key=b"another", rank=1, purpose=FILES, limit=timedelta(seconds=5))
    found.append("refused")
    with socket.create_connection(address) as wrong:
        wrong.settimeout(5)
        wrong.sendall(bytes(64))  # a challenge, and an answer that is none
        answer = b"".join(iter(lambda: wrong.recv(1 << 10), b""))
    found.append(f"{len(answer)} bytes")
    return found


def test_who_does_not_know_the_key_reads_nothing(ranks):
    """Whoever connects is challenged, and hears no more than the answer to a challenge of its own."""
    assert ranks.call(2, strangers) == [["refused", "64 bytes"]] * 2
