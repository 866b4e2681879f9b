"""What ranks tell each other, and whether all are there in time."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError, HashStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from jupyter_dtrain.engine.comm.rank_store import StoreChannel

LIMIT = timedelta(seconds=20)


def two(timeout=LIMIT):
    store = HashStore()
    return (StoreChannel(store, rank=rank, world_size=2, timeout=timeout) for rank in range(2))


def test_what_the_first_says_is_heard_by_all():
    first, second = two()
    first.publish("answer", b"\x80 yes")
    assert second.hear("answer") == first.hear("answer") == b"\x80 yes"


def test_who_is_not_answered_gives_up():
    first, second = two(timedelta(milliseconds=50))
    first.publish("place", "a")
    with pytest.raises(DistStoreError):
        first.words("place")
    assert second.words("place", unless=lambda: True) is None
    second.publish("place", "b")
    assert first.words("place") == ["a", "b"]


def test_an_object_is_read_if_a_rank_has_said_it():
    store = HashStore()
    ranks = [StoreChannel(store, rank=rank, world_size=2, timeout=LIMIT, key=b"of this run") for rank in range(2)]
    stranger = StoreChannel(store, rank=0, world_size=2, timeout=LIMIT, key=b"of another")
    ranks[0].tell_object("answer", {"id": 3})
    assert ranks[1].hear_object("answer") == {"id": 3}
    stranger.tell_object("answer", {"id": 4})
    with pytest.raises(RuntimeError, match="wrong signature"):
        ranks[1].hear_object("answer")
    ranks[0].tell_object("answer", {"id": 5})
    store.set("other/0", store.get("answer/0"))  # type: ignore[arg-type]  # bytes, signed by a rank, but on another topic
    with pytest.raises(RuntimeError, match="wrong signature"):
        ranks[1].hear_object("other")
    store.set("empty/0", "")
    with pytest.raises(RuntimeError, match="wrong signature"):
        ranks[1].hear_object("empty")


def test_all_get_the_same_answer_whoever_is_late():
    early, late = two()
    assert not early.all_here("first", timedelta(milliseconds=1))
    assert not late.all_here("first", LIMIT), "the other has gone on"
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(early.all_here("second", LIMIT)))
    waiting.start()
    assert late.all_here("second", LIMIT)
    waiting.join()
    assert answers == [True]
