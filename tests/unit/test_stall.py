"""Ranks that wait for each other for ever are told of once, by their lines; those that are only slow are not."""

from __future__ import annotations

import linecache

import pytest

from jupyter_dtrain.elastic.watchdog import AFTER, LONGER, Watchdog
from jupyter_dtrain.protocol import Progress, Standing

CELL = "\nimport torch.distributed as dist\nif rank == 0:\n    dist.barrier()\nwhile True:\n    pass\n"


class Cell:
    """A cell on two ranks, watched by the clock of the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = 0
        self.said: list[str] = []
        self.through: set[int] = set()
        self.computing = 1.0  # of each second
        self.stall = Watchdog(
            2,
            ask=self._ask,
            say=self.said.append,
            computed=lambda: [self.now * self.computing] * 2,
            through=lambda rank: rank in self.through,
            clock=lambda: self.now,
        )

    def _ask(self) -> None:
        self.asked += 1

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.stall.look()

    def at(self, rank: int, line: int, *, waiting: bool) -> None:
        self.stall.note(Standing(rank=rank, filename="<cell>", line=line, function="<module>", waiting=waiting))

    def batch(self) -> None:
        self.stall.note(Progress(rank=0, epoch=1, batch=1, batches=10, step=1))


@pytest.fixture
def cell():
    linecache.cache["<cell>"] = (len(CELL), None, CELL.splitlines(keepends=True), "<cell>")
    yield Cell()
    del linecache.cache["<cell>"]


LONG = AFTER.total_seconds() + 1


def test_who_waits_and_who_is_missing(cell):
    for _ in range(2):
        cell.after(LONG)
        cell.at(0, 4, waiting=True)
        cell.at(1, 5, waiting=False)
    cell.after(LONG)
    (text,) = cell.said
    assert text.startswith("Nothing has happened for ")
    assert "rank 0 waits for the others at line 4 `dist.barrier()`; rank 1 is at line 5 `while True:`" in text
    cell.after(LONG)
    assert (len(cell.said), cell.asked) == (1, 2)


def test_one_that_does_not_answer(cell):
    for _ in range(2):
        cell.after(LONG)
        cell.at(1, 4, waiting=True)
    cell.after(LONG)
    assert "rank 0 does not answer; rank 1 waits" in cell.said[0]


@pytest.mark.parametrize(
    "answers", [[(0, 5, False), (1, 5, False)], [(0, 4, True), (1, 4, False)]], ids=["all compute", "the others are nearly there"]
)
def test_ranks_at_one_line_are_only_slow(cell, answers):
    for _ in range(3):
        cell.after(LONG)
        for rank, line, waiting in answers:
            cell.at(rank, line, waiting=waiting)
    assert cell.said == []


def test_ranks_that_move_on_are_not_stuck(cell):
    for line in (4, 3, 2):
        cell.after(LONG)
        cell.at(0, line, waiting=True)
        cell.at(1, 5, waiting=False)
    assert cell.said == []


def test_a_cell_of_long_steps_is_given_more_time(cell):
    cell.batch()
    cell.now += 20
    cell.batch()
    cell.after(190)
    assert cell.asked == 0
    cell.after(20)
    assert cell.asked == 1


def test_after_progress_it_is_told_again(cell):
    for count in (1, 2):
        for _ in range(2):
            cell.after(LONG)
            cell.at(0, 4, waiting=True)
            cell.at(1, 5, waiting=False)
        cell.after(LONG)
        assert len(cell.said) == count
        cell.stall._longest = 0.0
        cell.stall.note(None)
        cell.stall._longest = 0.0


def test_one_at_the_end_of_the_cell(cell):
    for _ in range(2):
        cell.after(LONG)
        cell.at(0, 4, waiting=True)
        cell.stall.note(Standing(rank=1, filename="", line=0, function="", waiting=True))
    cell.after(LONG)
    assert "rank 0 waits for the others at line 4 `dist.barrier()`; rank 1 waits for the others at the end of the cell." in cell.said[0]


def test_who_waits_for_one_at_the_same_line_that_computes_nothing(cell):
    cell.computing = 0.01
    for _ in range(2):
        cell.after(LONG)
        cell.at(0, 4, waiting=True)
        cell.at(1, 4, waiting=False)
    cell.after(LONG)
    assert "rank 0 waits for the others at line 4 `dist.barrier()`; rank 1 is at line 4 `dist.barrier()`." in cell.said[0]


@pytest.mark.parametrize("computing", [0.01, 1.0])
def test_all_at_one_line_with_nothing_to_do_are_given_time_to_sleep(cell, computing):
    cell.computing = computing
    for again in (0, 1):
        cell.now += again * LONGER * LONG
        for _ in range(2):
            cell.after(LONG)
            for rank in (0, 1):
                cell.at(rank, 5, waiting=False)
        assert cell.said == []
        cell.after(LONG)
        assert again or cell.said == []
    assert [text.partition(": ")[2] for text in cell.said] == (
        ["rank 0 is at line 5 `while True:`; rank 1 is at line 5 `while True:`. ■ ends the cell."] if computing < 1 else []
    )


def test_one_that_has_ended_while_another_waits_for_it(cell):
    cell.through = {1}
    for _ in range(2):
        cell.after(LONG)
        cell.at(0, 4, waiting=True)
    cell.after(LONG)
    assert "rank 0 waits for the others at line 4 `dist.barrier()`; rank 1 has come to the end of the cell." in cell.said[0]
