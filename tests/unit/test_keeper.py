"""Which snapshots count: those that every rank has written at one place, and when the next one is asked for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jupyter_dtrain.checkpoint.snapshot_folder import SnapshotFolder
from jupyter_dtrain.checkpoint.snapshot_index import SnapshotKeeper
from jupyter_dtrain.engine.snapshot.snapshot_files import snapshot_blobs, snapshot_file, unasked_number
from jupyter_dtrain.protocol import SnapshotTaken, StateSize, Steps
from jupyter_dtrain.transport.blob_store import BlobFolder
from tests.fakes import Clock


class Ranks:
    """Stands in for engines: writes the files and tells of them."""

    def __init__(self, keeper: SnapshotKeeper, world_size: int = 2) -> None:
        self.keeper, self.world_size = keeper, world_size

    def train(self, step: int) -> None:
        columns = {"time": [0.0], "loss": [None], "weight": [1.0], "learning_rate": [None], "samples": [1]}
        self.keeper.note(Steps(rank=0, step=[step], **columns))  # type: ignore[arg-type]

    def write(
        self,
        rank: int,
        number: int,
        *,
        step: int = 10,
        place: str = "line 3",
        seconds: float = 0.001,
        data: bytes = b"",
        best: float | None = None,
        at_multiple: bool = False,
    ) -> str:
        key = BlobFolder(snapshot_blobs(self.keeper.store.address, number)).put(memoryview(data or f"{rank} {number}".encode()))
        snapshot_file(self.keeper.store.address, number, rank).write_bytes(b"state")
        told = {"rank": rank, "number": number, "step": step, "place": place, "keys": [key]}
        self.keeper.note(SnapshotTaken(**told, seconds=seconds, best=best, at_multiple=at_multiple))  # type: ignore[arg-type]
        return key

    def files(self) -> set[str]:
        return {path.name for path in self.keeper.store.address.iterdir() if path.is_file()}

    def blobs(self) -> set[str]:
        return {path.name for path in self.keeper.store.address.glob("*.blobs/*")}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keeper(tmp_path, clock):
    return SnapshotKeeper(SnapshotFolder(tmp_path / "snapshots"), 2, keep=2, clock=clock)


@pytest.fixture
def ranks(keeper):
    keeper.store.address.mkdir()
    return Ranks(keeper)


def numbers(keeper: SnapshotKeeper) -> tuple[int, int, str] | None:
    newest = keeper.newest
    return None if newest is None else (newest.number, newest.step, newest.place)


def asked_after(keeper: SnapshotKeeper, clock: Clock, seconds: float) -> int | None:
    clock.now += seconds
    return keeper.due()


def test_none_is_asked_for_before_the_first_step(keeper, clock):
    assert asked_after(keeper, clock, 1000.0) is None


def test_a_snapshot_counts_once_every_rank_has_written_it(keeper, clock, ranks):
    ranks.train(1)
    assert asked_after(keeper, clock, 0.9) is None
    assert asked_after(keeper, clock, 0.2) == 1
    ranks.write(0, 1)
    assert asked_after(keeper, clock, 100.0) is None
    assert numbers(keeper) is None
    ranks.write(1, 1)
    keeper.commit()
    assert numbers(keeper) == (1, 10, "line 3")
    assert ranks.files() == {"1-0", "1-1"}


class Replicated(SnapshotFolder):
    """Snapshots that are somewhere else as well, once that is so."""

    safe: bool | OSError = False
    took = 0.0

    def is_safe(self, number, limit=timedelta(0)):
        if isinstance(self.safe, OSError):
            raise self.safe
        return self.safe or bool(limit)

    def seconds(self, number):
        return self.took


@pytest.fixture
def replicated(keeper):
    keeper.store = Replicated(keeper.store.address)
    return keeper.store


def test_one_counts_once_it_is_somewhere_else_too_and_the_way_there_is_of_its_cost(keeper, clock, ranks, replicated):
    ranks.train(1)
    assert asked_after(keeper, clock, 2) == 1
    for rank in (0, 1):
        ranks.write(rank, 1)
    assert asked_after(keeper, clock, 100.0) is None
    assert numbers(keeper) is None
    replicated.safe, replicated.took = True, 1.0
    keeper.commit()
    assert numbers(keeper) == (1, 10, "line 3")
    assert asked_after(keeper, clock, 49.0) is None
    assert asked_after(keeper, clock, 2.0) == 2


def test_at_the_end_of_the_ranks_it_is_waited_for(keeper, clock, ranks, replicated):
    ranks.train(1)
    asked_after(keeper, clock, 2)
    for rank in (0, 1):
        ranks.write(rank, 1)
    keeper.commit(timedelta(seconds=1))
    assert numbers(keeper) == (1, 10, "line 3")


def test_one_that_finds_no_room_does_not_count_and_that_is_told_once(keeper, clock, ranks, replicated):
    ranks.train(1)
    replicated.safe = OSError(28, "No space left on device")
    for number in (1, 2):
        assert asked_after(keeper, clock, 2) == number
        for rank in (0, 1):
            ranks.write(rank, number)
        keeper.commit()
    assert keeper.newest is None
    assert ranks.files() == set()
    (told,) = keeper.news()
    assert "No snapshot counts" in told
    assert "No space left on device" in told


@pytest.mark.parametrize("size_first", [True, False])
def test_the_first_of_a_large_state_waits_as_long_as_the_others(keeper, clock, ranks, size_first):
    if not size_first:
        ranks.train(1)
    for rank in (0, 1):
        keeper.note(StateSize(rank=rank, seconds=0.5))
    if size_first:
        ranks.train(1)
    assert asked_after(keeper, clock, 24.9) is None  # 2 % of it would be less than half a second
    assert asked_after(keeper, clock, 0.2) == 1


def test_one_that_is_wanted_at_once_does_not_wait_for_a_large_state(keeper, clock, ranks):
    ranks.train(1)
    keeper.hasten()
    keeper.note(StateSize(rank=0, seconds=100.0))
    assert asked_after(keeper, clock, 0.0) == 1


def test_the_one_before_goes_with_the_buffers_that_only_it_had(keeper, clock, ranks):
    ranks.train(1)
    first = asked_after(keeper, clock, 2)
    shared = [ranks.write(rank, first, data=b"weights of both" * 10_000) for rank in (0, 1)]
    ranks.write(0, first, data=b"old")
    ranks.write(0, first, data=b"weights of both" * 10_000)
    keeper.commit()
    second = asked_after(keeper, clock, 2)
    ranks.write(0, second, step=20, data=b"weights of both" * 10_000)
    own = ranks.write(1, second, step=20, data=b"new")
    keeper.commit()
    assert keeper.newest.number == second
    assert ranks.files() == {"2-0", "2-1"}
    assert ranks.blobs() == {shared[0], own}


@pytest.mark.parametrize("other", [{"step": 11}, {"place": "line 4"}, {"place": ""}])
def test_ranks_that_were_at_different_places_do_not_make_one(keeper, clock, ranks, other):
    ranks.train(1)
    asked = asked_after(keeper, clock, 2)
    ranks.write(0, asked)
    ranks.write(1, asked, **other)
    keeper.commit()
    assert keeper.newest is None
    assert ranks.files() == set()
    assert asked_after(keeper, clock, 2) == 2


def test_they_take_no_more_than_their_share_of_the_time(keeper, clock, ranks):
    ranks.train(1)
    asked = asked_after(keeper, clock, 2)
    ranks.write(0, asked, seconds=0.1)
    ranks.write(1, asked, seconds=0.3)
    keeper.commit()
    assert asked_after(keeper, clock, 14.9) is None, "0.3 s are 2% of 15 s"
    assert asked_after(keeper, clock, 0.2) is not None


def test_what_a_lost_generation_had_begun_is_void(keeper, clock, ranks):
    ranks.train(1)
    asked = asked_after(keeper, clock, 2)
    ranks.write(0, asked)
    keeper.start(2)
    assert asked_after(keeper, clock, 100) is None, "the next generation has not taken a step"
    ranks.train(1)
    assert asked_after(keeper, clock, 2) == 2
    assert keeper.newest is None


def test_one_that_is_being_written_keeps_its_buffers_when_another_is_whole(keeper, clock, ranks):
    ranks.train(1)
    ahead = unasked_number(0, 2)
    now = asked_after(keeper, clock, 2)
    written = ranks.write(0, ahead, step=50)
    ranks.write(0, now), ranks.write(1, now)
    keeper.commit()
    assert numbers(keeper) == (now, 10, "line 3")
    ranks.write(1, ahead, step=50)
    keeper.commit()
    newest = keeper.newest
    assert newest is not None
    assert newest.number == ahead
    assert keeper.blobs(newest).missing([written, *newest.keys]) == []


def test_one_that_is_held_stays(keeper, clock, ranks):
    ranks.train(1)
    for number in (1, 2):
        assert asked_after(keeper, clock, 2) == number
        ranks.write(0, number), ranks.write(1, number)
        keeper.commit()
        if number == 1:
            keeper.held = keeper.newest
    assert ranks.files() == {"1-0", "1-1", "2-0", "2-1"}
    keeper.release()
    assert ranks.files() == {"2-0", "2-1"}


def test_those_at_multiples_of_steps_wait_for_the_disk_also_behind_newer_ones(tmp_path, clock):
    keeper = SnapshotKeeper(SnapshotFolder(tmp_path / "snapshots"), 1, keep=2, clock=clock)
    keeper.store.address.mkdir()
    ranks = Ranks(keeper, 1)
    ranks.train(3)
    asked = asked_after(keeper, clock, 2)
    assert asked is not None
    for count, step in enumerate((50, 100, 150), 1):
        ranks.write(0, unasked_number(0, 2 * count), step=step, at_multiple=True)
    ranks.write(0, asked, step=170)
    keeper.commit()
    assert [snapshot.step for snapshot in keeper.waiting] == [100, 150], "as many as stay on the disk"
    assert numbers(keeper) == (asked, 170, "line 3")
    assert len(ranks.files()) == 3
    keeper.retain(keeper.waiting[0])
    assert [snapshot.step for snapshot in keeper.waiting] == [150]
    keeper.release()
    assert len(ranks.files()) == 2
    keeper.go_back(keeper.waiting[0])
    assert keeper.waiting == [], "the run comes there again"
    assert ranks.files() == {f"{unasked_number(0, 6)}-0"}


def test_one_that_was_whole_only_after_a_newer_one_goes(keeper, clock, ranks):
    ranks.train(1)
    asked = asked_after(keeper, clock, 2)
    for rank in (0, 1):
        ranks.write(rank, unasked_number(0, 1), step=20, best=0.5)
    keeper.commit()
    for rank in (0, 1):
        ranks.write(rank, asked, step=10)
    keeper.commit()
    assert ranks.files() == {f"{unasked_number(0, 1)}-{rank}" for rank in (0, 1)}


def test_one_that_is_wanted_is_asked_for_at_once_also_where_the_ranks_wait(keeper, clock, ranks):
    ranks.train(1)
    assert asked_after(keeper, clock, 0.1) is None
    keeper.hasten()
    asked = keeper.due(idle=True)
    ranks.write(0, asked), ranks.write(1, asked, seconds=1.0)
    assert keeper.due(idle=True) is None
    clock.now += 1000
    assert keeper.due(idle=True) is None, "nothing is new where nobody moves"
    assert keeper.due() is not None
    assert keeper.training_since is not None


def test_one_that_is_wanted_is_asked_of_the_next_generation_if_the_ranks_were_lost(keeper, clock, ranks):
    keeper.hasten()
    assert keeper.due() is not None
    keeper.start(2)
    assert keeper.due(idle=True) == 2
    ranks.write(0, 2), ranks.write(1, 2, place="line 4")
    assert keeper.due(idle=True) is None, "not at once again, where the ranks are not at one place"
    assert asked_after(keeper, clock, 2) == 3


def test_the_best_is_nobodys_wish_and_stays_until_it_is_written(keeper, clock, ranks):
    ranks.train(1)
    best = unasked_number(0, 1)
    for rank in (0, 1):
        ranks.write(rank, best, step=10, best=0.5)
    keeper.commit()
    assert (keeper.best.number, keeper.best.metric, keeper.newest.number) == (best, 0.5, best)
    asked = asked_after(keeper, clock, 2)
    for rank in (0, 1):
        ranks.write(rank, asked, step=20)
    keeper.commit()
    assert ranks.files() == {f"{best}-0", f"{best}-1", "1-0", "1-1"}
    keeper.retain(keeper.best)
    keeper.release()
    assert ranks.files() == {"1-0", "1-1"}


def test_one_that_only_some_ranks_had_begun_is_void_for_the_next_generation(keeper, ranks):
    ranks.train(1)
    ranks.write(0, unasked_number(0, 1), best=0.5)
    keeper.start(2)
    ranks.write(1, unasked_number(1, 1), best=0.5)
    keeper.commit()
    assert keeper.best is None
    assert ranks.files() == {f"{unasked_number(1, 1)}-1"}
