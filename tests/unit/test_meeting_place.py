"""Two ranks that meet, or do not: who waits for the other hears of its failure, or that the cell goes different ways on the two."""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jupyter_dtrain.engine.comm.failures import FailedElsewhere, error_of, to_bytes
from jupyter_dtrain.engine.comm.meeting_place import NOTE, MeetingPlace
from jupyter_dtrain.engine.comm.peers import Peers

LIMIT = 20.0  # seconds
FAILURE = to_bytes(ValueError("of this rank"))
Places = tuple[MeetingPlace, MeetingPlace]


@pytest.fixture
def places() -> Iterator[Places]:
    sockets, memory = socket.socketpair(), [mmap.mmap(-1, NOTE) for _ in range(2)]
    both = [Peers(rank, {1 - rank: sockets[rank]}, memory) for rank in (0, 1)]
    yield MeetingPlace(both[0], notes=0), MeetingPlace(both[1], notes=0)
    for peers in both:
        peers.close()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Return what each call on a thread of its own returns or raises."""
    with ThreadPoolExecutor(len(calls)) as threads:
        started = [threads.submit(call) for call in calls]
        return [one.exception(LIMIT) or one.result() for one in started]


@pytest.mark.parametrize("waits", [MeetingPlace.barrier, lambda place: place.agree(None)], ids=["an exchange", "the end of a step"])
@pytest.mark.parametrize("failing", [0, 1])
def test_who_waits_for_a_rank_that_has_failed_hears_of_its_error(places, waits, failing):
    places[0].of_rank0(b"told before")  # which rank 1 has not heard if it fails
    if failing == 0:
        assert places[1].of_rank0(b"") == b"told before"
    found, own = at_once(lambda: waits(places[1 - failing]), lambda: places[failing].agree(FAILURE))
    found = found.failures if isinstance(found, FailedElsewhere) else found
    assert found == own == [FAILURE if rank == failing else None for rank in (0, 1)]
    assert at_once(*[place.barrier for place in places]) == [None, None], "they go on together"


def test_who_waits_for_what_rank_0_tells_hears_of_its_error(places):
    error, own = at_once(lambda: places[1].of_rank0(b""), lambda: places[0].agree(FAILURE))
    assert isinstance(error, FailedElsewhere)
    assert error.failures == own == [FAILURE, None]
    assert repr(error_of(own[0], 0)) == "ValueError('of this rank')"
    assert at_once(*[place.barrier for place in places]) == [None, None]


ELSEWHERE = {
    "another exchange": lambda place: place.barrier(8),
    "the end of a step": lambda place: place.agree(None),
    "what rank 0 tells": lambda place: place.of_rank0(b""),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_ranks_at_different_lines_of_the_cell_are_told(places, name):
    for error in at_once(lambda: places[0].barrier(7), lambda: ELSEWHERE[name](places[1])):
        assert type(error) is RuntimeError
        assert "The ranks are at different lines of the cell" in str(error)
        assert "an unseeded generator" in str(error)


def test_the_error_that_the_cell_has_caught_is_named(places):
    places[1].note(FAILURE)
    for error in at_once(lambda: places[0].barrier(7), lambda: places[1].agree(None)):
        assert "Rank 1 had raised ValueError (of this rank), which the cell caught. The others did not raise." in str(error)


def test_rank_0_is_awaited_only_where_it_waits_itself(places):
    assert not places[1].is_awaited()
    texts = [b"some", b"", b"more" * 20_000]
    for text in texts:
        places[0].of_rank0(text)
    assert not places[1].is_awaited()
    assert [places[1].of_rank0(b"") for _ in texts] == texts
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(places[0].barrier)
        while not places[1].is_awaited():
            time.sleep(0.001)
        assert not waiting.done()
        places[1].barrier()
        waiting.result(LIMIT)


def test_who_has_left_is_awaited_nowhere_and_waits_for_nobody(places):
    places[1]._peers.close()
    assert places[0].is_awaited()
    assert places[1].is_awaited(), "so that it goes and gets an error"
    for place in places:
        with pytest.raises(RuntimeError, match="it has left"):
            place.barrier()


@pytest.mark.parametrize("exchange", [MeetingPlace.exchange_files, MeetingPlace.open_files])
def test_files_of_who_has_left_are_not_waited_for(places, exchange, tmp_path):
    (tmp_path / "file").write_bytes(b"text")

    def come_and_leave():
        places[1].barrier(0x46494C45)
        places[1]._peers.close()

    with (tmp_path / "file").open() as file:
        error, _ = at_once(lambda: exchange(places[0], file.fileno()), come_and_leave)
    assert type(error) is RuntimeError
    assert str(error) == "Connection with rank 1: it has left."


def test_files_of_each_other_are_read(places, tmp_path):
    def read(rank):
        (tmp_path / f"{rank}").write_bytes(b"file of %d" % rank)
        with (tmp_path / f"{rank}").open() as own:
            (other,) = places[rank].open_files(own.fileno()).values()
        found = bytearray(4)
        other.read(memoryview(found), 5)
        with pytest.raises(RuntimeError, match="has less memory"):
            other.read(memoryview(bytearray(9)), 3)
        other.close()
        return bytes(found)

    assert at_once(lambda: read(0), lambda: read(1)) == [b"of 1", b"of 0"]
