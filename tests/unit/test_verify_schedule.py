"""When a run checks itself: the first time as soon as that is within the budget, and then at growing distances."""

from __future__ import annotations

import pytest

from jupyter_dtrain.engine.verify import schedule as module
from jupyter_dtrain.engine.verify.schedule import ASKED_FIRST, LOOKING, PART, Estimate, Schedule, Turn
from jupyter_dtrain.system.resources import Memory


class Clock:
    """A schedule of two ranks whose time passes by calls."""

    def __init__(self, schedule: Schedule, *, per_call: float, cost: float, fits: bool = True) -> None:
        self.schedule, self.per_call, self.cost, self.fits = schedule, per_call, cost, fits
        self.turn, self.now, self.spent = schedule.new_turn(), 0.0, 0.0
        self.checked: list[int] = []

    def calls(self, number: int) -> list[int]:
        """Make calls, and return the numbers of those that are checked."""
        for _ in range(number):
            self.now += self.per_call
            if self.schedule.note(self.turn) and (self.turn.is_open or self._opens()):
                self.checked.append(self.turn.calls)
                self.now, self.spent = self.now + self.cost, self.spent + self.cost
                self.schedule.follow(self.turn, [(self.cost, self.now), (self.cost / 2, self.now)])
        return self.checked

    def _opens(self) -> bool:
        slow = Estimate(self.cost + LOOKING, self.now, is_possible=True)
        return self.schedule.opens(self.turn, [slow, Estimate(0.0, self.now, is_possible=self.fits)])


def test_a_short_cell_is_not_checked():
    assert Clock(Schedule("auto"), per_call=0.01, cost=0.05).calls(1000) == []


@pytest.mark.parametrize("cost", [0.05, 0.5, 5.0])
def test_checks_take_at_most_a_hundredth_of_the_time_at_growing_distances(cost):
    clock = Clock(Schedule("auto"), per_call=0.01, cost=cost)
    first, second, *_ = clock.calls(1_000_000)
    assert first >= cost / 0.01 / PART
    assert second >= 2 * first
    assert clock.spent <= 1.02 * PART * clock.now


def test_all_kinds_of_calls_share_the_time():
    schedule = Schedule("auto")
    first, second = (Clock(schedule, per_call=0.01, cost=1.0) for _ in range(2))
    for _ in range(100_000):
        first.calls(1)
        second.now = max(second.now, first.now)
        second.calls(1)
        first.now = second.now
    assert first.checked
    assert second.checked
    assert first.spent + second.spent <= 1.05 * PART * first.now


def test_a_batch_that_does_not_fit_on_one_rank_is_not_checked():
    assert Clock(Schedule("auto"), per_call=1.0, cost=0.01, fits=False).calls(100_000) == []


def test_first_checks_at_once_and_later_ones_within_the_time():
    clock = Clock(Schedule("first"), per_call=0.01, cost=0.5)
    assert clock.calls(50) == [1]
    clock.calls(1_000_000)
    assert len(clock.checked) > 3
    assert clock.spent <= 1.05 * PART * clock.now


def test_always_checks_every_call():
    assert Clock(Schedule("always"), per_call=0.01, cost=0.5).calls(5) == [1, 2, 3, 4, 5]


def test_calls_are_counted_before_anything_is_measured():
    schedule = Schedule("auto")
    turn: Turn = schedule.new_turn()
    assert [number for number in range(1, ASKED_FIRST + 2) if schedule.note(turn)] == [ASKED_FIRST, ASKED_FIRST + 1]


def test_what_a_run_has_taken_has_to_be_free_once_for_each_rank_on_each_rank(monkeypatch):
    taken = 1 << 30
    monkeypatch.setattr(module, "_resident", lambda: module._AT_START + taken)
    for free, fits in ((10, True), (8, False)):
        monkeypatch.setattr(module, "memory", lambda free=free: Memory(left=free << 30, total=10 << 30))
        assert Schedule("auto", world_size=3).estimate(0.0).is_possible is fits
