"""The store by which ranks of several hosts meet does what PyTorch's stores do, for those who have its key."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import zmq
from torch.distributed import DistNetworkError, DistStoreError, HashStore, PrefixStore  # type: ignore[attr-defined]

from jupyter_dtrain.cluster.hosts import remote_store
from jupyter_dtrain.cluster.hosts.store_server import KEPT, StoreServer

LIMIT = timedelta(seconds=0.3)


@pytest.fixture
def server():
    server = StoreServer("127.0.0.1")
    yield server
    server.close()


def asked(store):
    """Return what a store answers to all that is asked of one."""
    within = PrefixStore("run", store)
    within.set("a", "1")
    answers = [within.get("a"), within.check(["a"]), within.check(["a", "b"]), within.add("n", 2), within.add("n", 3), within.get("n")]
    answers += [within.compare_set("c", "", "first"), within.compare_set("c", "", "second"), within.compare_set("c", "first", "third")]
    answers += [within.compare_set("d", "never", "x"), within.delete_key("a"), within.delete_key("a"), within.check(["a"])]
    within.set("b", b"\0bytes")  # type: ignore[arg-type]  # it takes bytes as well
    return [*answers, within.get("b")]


def test_it_answers_as_pytorchs_own_does(server):
    assert asked(server.endpoint().open(2, LIMIT)) == asked(HashStore())


def test_ranks_of_one_meeting_share_it_and_others_do_not(server):
    endpoint = server.endpoint()
    one, other, apart = endpoint.open(2, LIMIT), endpoint.open(2, LIMIT), server.endpoint().open(2, LIMIT)
    one.set("key", "value")
    assert other.get("key") == b"value"
    assert not apart.check(["key"])


def test_what_nobody_says_is_waited_for_until_the_limit(server):
    with pytest.raises(DistStoreError, match=r"Waited 0\.3 s for the rendezvous keys missing"):
        server.endpoint().open(2, LIMIT).wait(["missing"])


def test_a_meeting_that_is_over_is_refused(server):
    old = server.endpoint().open(2, LIMIT)
    for _ in range(KEPT):
        server.endpoint()
    with pytest.raises(DistStoreError, match="begun another rendezvous"):
        old.set("key", "value")


def test_who_has_another_key_gets_no_answer(server, monkeypatch):
    monkeypatch.setattr(remote_store, "SILENCE", LIMIT)
    public, _ = zmq.curve_keypair()
    with pytest.raises(DistNetworkError, match="has not answered"):
        replace(server.endpoint(), server_key=public).open(2, LIMIT).set("key", "value")
