"""Shares by speed: measured from what ranks report, changed seldom, and never to nothing."""

from __future__ import annotations

import pytest

from jupyter_dtrain.elastic.balance import FEWEST_STEPS, LEAST, WINDOW, Balance
from jupyter_dtrain.protocol import RankStarted, Steps, TimeSplit


class Ranks:
    """Ranks of given speeds, in samples a second, and the clock of the test."""

    def __init__(self, *speeds: float, batch: int = 64) -> None:
        self.speeds, self.batch = list(speeds), batch
        self.shares = [batch / len(speeds)] * len(speeds)
        self.now, self.step = 0.0, 0
        self.busy = [0.0] * len(speeds)
        self.balance = Balance(len(speeds), clock=lambda: self.now)

    def train(self, steps: int, *, untold: int = 0) -> None:
        """Do steps, of which all ranks but the first have not yet told of the last `untold`."""
        self.step += steps
        taken = [share / speed for share, speed in zip(self.shares, self.speeds, strict=True)]
        self.now += steps * max(taken)
        for rank, seconds in enumerate(taken):
            told = steps - untold if rank else steps
            self.busy[rank] += told * seconds
            numbers = list(range(self.step - steps, self.step - steps + told))
            columns = {"time": [0.0] * told, "loss": [None] * told, "weight": [0.5] * told, "learning_rate": [None] * told}
            self.balance.note(Steps(rank=rank, step=numbers, samples=[round(self.shares[rank])] * told, **columns))  # type: ignore[arg-type]
            wait = self.now - self.busy[rank]
            half = self.busy[rank] / 2
            self.balance.note(
                TimeSplit(rank=rank, step=self.step, data=0.0, forward=half, backward=half, communication=wait, optimizer=0.0, other=0.0)
            )

    def until_due(self) -> list[float] | None:
        """Train on until shares change, or for long."""
        for _ in range(10):
            self.train(200)
            found = self.balance.due()
            if found is not None:
                self.shares = [self.batch * speed / sum(found) for speed in found]
                return found
        return None


def test_a_slower_rank_gets_a_smaller_share_and_then_it_is_good():
    ranks = Ranks(1000.0, 500.0)
    speeds = ranks.until_due()
    assert speeds is not None
    assert speeds[0] / speeds[1] == pytest.approx(2.0)
    assert ranks.until_due() is None
    ranks.speeds = [1000.0, 1000.0]
    assert ranks.until_due() == pytest.approx([1.0, 1.0], rel=0.05)


def test_ranks_that_are_about_equally_fast_are_left_alone():
    assert Ranks(1000.0, 950.0, 1020.0).until_due() is None


def test_a_rank_that_has_told_of_more_steps_than_another_is_not_slower():
    ranks = Ranks(1000.0, 1000.0)
    ranks.train(200)
    assert ranks.balance.due() is None
    ranks.train(60, untold=20)
    assert ranks.balance.due() is None


def test_nothing_is_said_of_a_short_time_or_few_steps():
    ranks = Ranks(1000.0, 500.0)
    ranks.train(FEWEST_STEPS - 1)
    ranks.now += WINDOW.total_seconds()
    assert ranks.balance.due() is None
    ranks = Ranks(100_000.0, 50_000.0)
    ranks.train(FEWEST_STEPS)
    assert ranks.balance.due() is None


@pytest.mark.parametrize(("slow", "seconds"), [(500.0, 0.5), (850.0, 1.7)])
def test_a_great_difference_is_seen_sooner_than_a_small_one(slow, seconds):
    ranks = Ranks(1000.0, slow, batch=8)
    ranks.train(FEWEST_STEPS * 20)
    assert ranks.balance.due() is None, "the first steps of a cell are slower than others"
    begin, found = ranks.now, None
    while found is None:
        ranks.train(5)
        found = ranks.balance.due()
    assert ranks.now - begin == pytest.approx(seconds, abs=0.15)


def test_a_rank_that_does_next_to_nothing_keeps_a_little():
    assert min(Ranks(1000.0, 1.0).until_due() or []) == LEAST


def test_a_rank_that_was_replaced_is_measured_anew():
    ranks = Ranks(1000.0, 500.0)
    ranks.train(200)
    ranks.busy[1] = 0.0
    ranks.balance.note(RankStarted(rank=1, world_size=2, host="h", pid=1, device="cpu", device_name="cpu"))
    speeds = ranks.until_due()
    assert speeds is not None
    assert speeds[0] / speeds[1] == pytest.approx(2.0)
