"""A rank that waits for a message of another one: it looks for it a while, then sleeps until it comes or the other leaves."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import pytest
import torch.distributed as dist

from jupyter_dtrain.engine.comm import peers as module
from jupyter_dtrain.engine.comm.peers import Peers
from jupyter_dtrain.engine.comm.process_group import shared_memory
from jupyter_dtrain.system.resources import usable_cores
from tests.engine.ranks import Run

LONG, SHORT = timedelta(seconds=20), timedelta(milliseconds=1)


@contextmanager
def connected(awake: timedelta) -> Iterator[tuple[Peers, Peers]]:
    """Yield ranks 0, which looks for a message as long as `awake`, and 1."""
    sockets = socket.socketpair()
    both = Peers(0, {1: sockets[0]}, [], awake=awake), Peers(1, {0: sockets[1]}, [])
    try:
        yield both
    finally:
        for peers in both:
            peers.close()


def after(seconds: float, do: Callable[[], None]) -> None:
    threading.Timer(seconds, do).start()


@pytest.mark.parametrize("awake", [timedelta(0), SHORT, LONG], ids=["asleep", "awake, then asleep", "awake"])
class TestAWaitingRank:
    def test_gets_a_message_that_is_there_comes_later_or_in_parts(self, awake):
        with connected(awake) as (waiting, other):
            other.send(b"there")
            assert waiting.receive(5) == [b"there"]
            after(0.1, lambda: other.send(b"later"))
            assert waiting.receive(5) == [b"later"]
            other.send(b"par")
            after(0.1, lambda: other.send(b"ts, and more"))
            assert waiting.receive(5) == [b"parts"]
            assert waiting.receive_from(1, 10) == b", and more"

    def test_is_told_that_the_other_has_left(self, awake):
        with connected(awake) as (waiting, other):
            after(0.1, other.close)
            with mock.patch.object(waiting, "on_lost") as lost, pytest.raises(RuntimeError, match="rank 1: it has left"):
                waiting.receive(5)
            lost.assert_called_once_with()

    def test_is_told_if_the_other_leaves_in_the_middle_of_a_message(self, awake):
        with connected(awake) as (waiting, other):
            other.send(b"hal")
            after(0.1, other.close)
            with pytest.raises(RuntimeError, match="rank 1: it has left"):
                waiting.receive(5)


def test_a_rank_that_looks_for_a_message_does_not_sleep():
    looks: list[None] = []

    def give_way() -> None:
        looks.append(None)
        if len(looks) == 3:
            other.send(b"later")

    with connected(LONG) as (waiting, other), mock.patch.object(os, "sched_yield", give_way):
        assert waiting.receive(5) == [b"later"]
    assert len(looks) == 3


def awake_with(_run: Run, num_cores: int) -> tuple[bool, bool]:
    """Return whether ranks with so many cores would look for messages, and whether these do as they should."""
    memory = shared_memory()
    assert memory is not None
    as_told = (memory._peers._awake > 0) == (usable_cores() >= dist.get_world_size())
    with mock.patch.object(module, "usable_cores", return_value=num_cores):
        return module._have_cores(), as_told


def test_ranks_look_for_messages_only_if_each_has_a_core(ranks):
    assert ranks.call(2, awake_with, 1) == [(False, True)] * 2
    assert ranks.call(2, awake_with, 2) == [(True, True)] * 2
    assert ranks.call(4, awake_with, 3) == [(False, True)] * 4
