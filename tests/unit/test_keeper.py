"""Which snapshots count: those that every rank has written at one place, and when the next one is asked for."""

from __future__ import annotations

import pytest

from jupyter_dtrain.engine.snapshots import snapshot_blobs, snapshot_file, unasked_number
from jupyter_dtrain.protocol import SnapshotTaken, StateSize, Steps
from jupyter_dtrain.supervision.keeper import Asked, SnapshotKeeper
from jupyter_dtrain.transport.blobs import BlobFolder


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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
    ) -> str:
        key = BlobFolder(snapshot_blobs(self.keeper.folder, number)).put(memoryview(data or f"{rank} {number}".encode()))
        snapshot_file(self.keeper.folder, number, rank).write_bytes(b"state")
        self.keeper.note(SnapshotTaken(rank=rank, number=number, step=step, place=place, seconds=seconds, keys=[key], best=best))
        return key

    def files(self) -> set[str]:
        return {path.name for path in self.keeper.folder.iterdir() if path.is_file()}

    def blobs(self) -> set[str]:
        return {path.name for path in self.keeper.folder.glob("*.blobs/*")}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keeper(tmp_path, clock):
    return SnapshotKeeper(tmp_path / "snapshots", 2, clock=clock)


@pytest.fixture
def ranks(keeper):
    keeper.folder.mkdir()
    return Ranks(keeper)


def numbers(keeper: SnapshotKeeper) -> tuple[int, int, str] | None:
    newest = keeper.newest
    return None if newest is None else (newest.number, newest.step, newest.place)


def asked_after(keeper: SnapshotKeeper, clock: Clock, seconds: float) -> list[Asked]:
    clock.now += seconds
    return keeper.due()


def test_none_is_asked_for_before_the_first_step(keeper, clock):
    assert asked_after(keeper, clock, 1000.0) == []


def test_a_snapshot_counts_once_every_rank_has_written_it(keeper, clock, ranks):
    ranks.train(1)
    assert asked_after(keeper, clock, 0.9) == []
    assert asked_after(keeper, clock, 0.2) == [Asked(1)]
    ranks.write(0, 1)
    assert asked_after(keeper, clock, 100.0) == []
    assert numbers(keeper) is None
    ranks.write(1, 1)
    keeper.settle()
    assert numbers(keeper) == (1, 10, "line 3")
    assert ranks.files() == {"1-0", "1-1"}


@pytest.mark.parametrize("size_first", [True, False])
def test_the_first_of_a_large_state_waits_as_long_as_the_others(keeper, clock, ranks, size_first):
    if not size_first:
        ranks.train(1)
    for rank in (0, 1):
        keeper.note(StateSize(rank=rank, seconds=0.5))
    if size_first:
        ranks.train(1)
    assert asked_after(keeper, clock, 24.9) == []  # 2 % of it would be less than half a second
    assert asked_after(keeper, clock, 0.2) == [Asked(1)]


def test_one_that_is_wanted_at_once_does_not_wait_for_a_large_state(keeper, clock, ranks):
    ranks.train(1)
    keeper.hasten()
    keeper.note(StateSize(rank=0, seconds=100.0))
    assert asked_after(keeper, clock, 0.0) == [Asked(1)]


def test_the_one_before_goes_with_the_buffers_that_only_it_had(keeper, clock, ranks):
    ranks.train(1)
    (first,) = asked_after(keeper, clock, 2)
    shared = [ranks.write(rank, first.number, data=b"weights of both" * 10_000) for rank in (0, 1)]
    ranks.write(0, first.number, data=b"old")
    ranks.write(0, first.number, data=b"weights of both" * 10_000)
    keeper.settle()
    (second,) = asked_after(keeper, clock, 2)
    ranks.write(0, second.number, step=20, data=b"weights of both" * 10_000)
    own = ranks.write(1, second.number, step=20, data=b"new")
    keeper.settle()
    assert keeper.newest.number == second.number
    assert ranks.files() == {"2-0", "2-1"}
    assert ranks.blobs() == {shared[0], own}


@pytest.mark.parametrize("other", [{"step": 11}, {"place": "line 4"}, {"place": ""}])
def test_ranks_that_were_at_different_places_do_not_make_one(keeper, clock, ranks, other):
    ranks.train(1)
    (asked,) = asked_after(keeper, clock, 2)
    ranks.write(0, asked.number)
    ranks.write(1, asked.number, **other)
    keeper.settle()
    assert keeper.newest is None
    assert ranks.files() == set()
    assert [asked.number for asked in asked_after(keeper, clock, 2)] == [2]


def test_they_take_no_more_than_their_share_of_the_time(keeper, clock, ranks):
    ranks.train(1)
    (asked,) = asked_after(keeper, clock, 2)
    ranks.write(0, asked.number, seconds=0.1)
    ranks.write(1, asked.number, seconds=0.3)
    keeper.settle()
    assert asked_after(keeper, clock, 14.9) == [], "0.3 s are 2% of 15 s"
    assert len(asked_after(keeper, clock, 0.2)) == 1


def test_what_a_lost_generation_had_begun_is_void(keeper, clock, ranks):
    ranks.train(1)
    (asked,) = asked_after(keeper, clock, 2)
    ranks.write(0, asked.number)
    keeper.begin(2)
    assert asked_after(keeper, clock, 100) == [], "the next generation has not taken a step"
    ranks.train(1)
    assert [asked.number for asked in asked_after(keeper, clock, 2)] == [2]
    assert keeper.newest is None


def test_one_that_is_being_written_keeps_its_buffers_when_another_is_whole(tmp_path, clock):
    keeper = SnapshotKeeper(tmp_path / "snapshots", 2, every=50, clock=clock)
    keeper.folder.mkdir()
    ranks = Ranks(keeper)
    ranks.train(1)
    (ahead,) = keeper.due()
    (now,) = asked_after(keeper, clock, 2)
    written = ranks.write(0, ahead.number, step=50)
    ranks.write(0, now.number), ranks.write(1, now.number)
    keeper.settle()
    assert numbers(keeper) == (now.number, 10, "line 3")
    ranks.write(1, ahead.number, step=50)
    keeper.settle()
    newest = keeper.newest
    assert newest is not None
    assert newest.number == ahead.number
    assert keeper.blobs(newest).missing([written, *newest.keys]) == []


def test_one_that_is_held_stays(keeper, clock, ranks):
    ranks.train(1)
    for number in (1, 2):
        assert asked_after(keeper, clock, 2)[0].number == number
        ranks.write(0, number), ranks.write(1, number)
        keeper.settle()
        if number == 1:
            keeper.held = keeper.newest
    assert ranks.files() == {"1-0", "1-1", "2-0", "2-1"}
    keeper.release()
    assert ranks.files() == {"2-0", "2-1"}


def test_multiples_of_steps_are_asked_for_ahead(tmp_path, clock):
    keeper = SnapshotKeeper(tmp_path / "snapshots", 1, every=50, clock=clock)
    keeper.folder.mkdir()
    ranks = Ranks(keeper, 1)
    ranks.train(3)
    (asked,) = keeper.due()
    assert asked.at == 50
    ranks.train(47)
    assert [asked.at for asked in asked_after(keeper, clock, 2)] == [0], "one in between, to lose less"
    ranks.write(0, asked.number, step=50)
    ranks.train(51)
    assert [asked.at for asked in keeper.due()] == [100]
    assert numbers(keeper) == (asked.number, 50, "line 3")


def test_one_that_is_wanted_is_asked_for_at_once_also_where_the_ranks_wait(keeper, clock, ranks):
    ranks.train(1)
    assert asked_after(keeper, clock, 0.1) == []
    keeper.hasten()
    (asked,) = keeper.due(idle=True)
    ranks.write(0, asked.number), ranks.write(1, asked.number, seconds=1.0)
    assert keeper.due(idle=True) == []
    clock.now += 1000
    assert keeper.due(idle=True) == [], "nothing is new where nobody moves"
    assert len(keeper.due()) == 1
    assert keeper.training_since is not None


def test_one_that_is_wanted_is_asked_of_the_next_generation_if_the_ranks_were_lost(keeper, clock, ranks):
    keeper.hasten()
    assert len(keeper.due()) == 1
    keeper.begin(2)
    assert [asked.number for asked in keeper.due(idle=True)] == [2]
    ranks.write(0, 2), ranks.write(1, 2, place="line 4")
    assert keeper.due(idle=True) == [], "not at once again, where the ranks are not at one place"
    assert [asked.number for asked in asked_after(keeper, clock, 2)] == [3]


def test_the_best_is_nobodys_wish_and_stays_until_it_is_written(keeper, clock, ranks):
    ranks.train(1)
    best = unasked_number(0, 1)
    for rank in (0, 1):
        ranks.write(rank, best, step=10, best=0.5)
    keeper.settle()
    assert (keeper.best.number, keeper.best.metric, keeper.newest.number) == (best, 0.5, best)
    (asked,) = asked_after(keeper, clock, 2)
    for rank in (0, 1):
        ranks.write(rank, asked.number, step=20)
    keeper.settle()
    assert ranks.files() == {f"{best}-0", f"{best}-1", "1-0", "1-1"}
    keeper.hold(keeper.best)
    keeper.release()
    assert ranks.files() == {"1-0", "1-1"}


def test_one_that_only_some_ranks_had_begun_is_void_for_the_next_generation(keeper, ranks):
    ranks.train(1)
    ranks.write(0, unasked_number(0, 1), best=0.5)
    keeper.begin(2)
    ranks.write(1, unasked_number(1, 1), best=0.5)
    keeper.settle()
    assert keeper.best is None
    assert ranks.files() == {f"{unasked_number(1, 1)}-1"}
