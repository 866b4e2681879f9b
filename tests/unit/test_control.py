"""Stopping: wherever the command finds the ranks, all of them end after the same step."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.control import Control, StopRun
from jupyter_dtrain.protocol import EndPause, Order, Pause, SetShares, Stop, StopToReturn, TakeSnapshot, TellStanding

LIMIT = timedelta(seconds=20)


class Waits(Exception):
    """A rank would have to wait here."""


class Ledger:
    """Stands in for the ranks' store, in one thread: where it would wait, it says so."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: Sequence[str]) -> bool:
        if not all(key in self.values for key in keys):
            raise Waits
        return True


class Rank:
    """A rank in the middle of its run, moved on one action at a time: begin a step, or finish the one it is in."""

    def __init__(self, ledger: Ledger, rank: int, world_size: int, last: int) -> None:
        self.control = Control(StoreChannel(ledger, rank=rank, world_size=world_size, timeout=LIMIT))  # type: ignore[arg-type]
        self.finished = 0
        self.in_step = False
        self.ended: str | None = None
        self.last = last

    def move(self, others: Sequence[Rank]) -> bool:
        """Do the next thing; return whether there was one that it need not wait for."""
        if self.ended is not None:
            return False
        if self.in_step:
            # Gradients are exchanged in a step: it ends when all others have begun it.
            if any(other.finished + other.in_step <= self.finished for other in others):
                return False
            self.in_step = False
            self.finished += 1
            return True
        if self.finished == self.last:
            self.control.close()
            self.ended = "done"
            return True
        try:
            self.control.boundary(self.finished)
        except Waits:
            return False
        except StopRun:
            self.ended = "stopped"
            return True
        self.in_step = True
        return True


@settings(max_examples=400, deadline=None)
@given(
    world_size=st.integers(1, 4),
    last=st.integers(0, 6),
    order=st.lists(st.integers(0, 3), max_size=60),
    commands=st.lists(st.integers(0, 40), min_size=4, max_size=4),
)
def test_all_ranks_stop_after_the_same_step(world_size, last, order, commands):
    ledger = Ledger()
    ranks = [Rank(ledger, rank, world_size, last) for rank in range(world_size)]
    told: dict[int, int] = {}  # rank → steps that it had finished when it was told
    moves = order + [n % 4 for n in range(400)]  # in turn, after the drawn order, until nothing moves
    for count, choice in enumerate(moves):
        for index, rank in enumerate(ranks):
            if count >= commands[index] and index not in told and rank.ended is None:
                rank.control.take(Stop())
                told[index] = rank.finished
        rank = ranks[choice % world_size]
        rank.move([other for other in ranks if other is not rank])
    assert all(rank.ended is not None for rank in ranks), "nobody waits for ever"
    assert len({rank.finished for rank in ranks}) == 1
    assert all(rank.finished <= last for rank in ranks)
    if len(told) == world_size:
        assert ranks[0].finished <= max(told.values()) + 1, "at once, but for the step in progress"
    if set(commands[:world_size]) == {0}:
        assert ranks[0].finished == 0, "told before they began"


@given(order=st.lists(st.integers(0, 1), max_size=30), last=st.integers(1, 5))
def test_without_a_command_every_step_is_run(order, last):
    ledger = Ledger()
    ranks = [Rank(ledger, rank, 2, last) for rank in range(2)]
    for choice in order + [0, 1] * 40:
        ranks[choice].move([ranks[1 - choice]])
    assert [(rank.ended, rank.finished) for rank in ranks] == [("done", last)] * 2


def test_other_commands_and_repeated_ones_change_nothing():
    control = Control(StoreChannel(HashStore(), rank=0, world_size=1, timeout=LIMIT))
    control.take(TellStanding())
    control.boundary(0)
    control.boundary(1)
    control.take(Stop())
    control.take(Stop())
    with pytest.raises(StopRun):
        control.boundary(2)
    with pytest.raises(StopRun):
        control.boundary(2)


@pytest.mark.parametrize(
    ("commands", "returns"),
    [
        ([StopToReturn()], True),
        ([Stop()], False),
        ([Stop(), StopToReturn()], False),
        ([StopToReturn(), Stop()], False),
    ],
)
def test_a_run_that_comes_again_is_known_before_the_cell_is_left(commands, returns):
    control = Control(StoreChannel(HashStore(), rank=0, world_size=1, timeout=LIMIT))
    told: list[str] = []
    control.on_return = lambda: told.append("returns")
    for command in commands:
        control.take(command)
    with pytest.raises(StopRun):
        control.boundary(0)
    assert told == ["returns"] * returns


def test_a_step_in_progress_is_finished():
    control = Control(StoreChannel(HashStore(), rank=0, world_size=1, timeout=LIMIT))
    control.boundary(0)  # step 1 begins
    control.take(Stop())
    with pytest.raises(StopRun):
        control.boundary(1)


def test_the_cells_own_handlers_do_not_catch_a_stop():
    assert issubclass(StopRun, BaseException)
    assert not issubclass(StopRun, Exception)


def test_waiting_for_a_rank_that_never_answers_has_a_limit():
    store = HashStore()
    control = Control(StoreChannel(store, rank=0, world_size=2, timeout=timedelta(milliseconds=50)))
    control.take(Stop())
    with pytest.raises(RuntimeError):
        control.boundary(0)


def test_who_has_run_to_the_end_takes_the_others_along():
    """A cell without an exchange in its steps: one rank is through before the command reaches the other."""
    store = HashStore()
    through, behind = (Control(StoreChannel(store, rank=rank, world_size=2, timeout=LIMIT)) for rank in range(2))
    for step in range(5):
        through.boundary(step)
    through.close()
    through.take(Stop())
    behind.boundary(0)
    behind.take(Stop())
    for step in range(1, 5):
        behind.boundary(step)


@pytest.mark.parametrize(("words", "same"), [(("a", "a"), True), (("a", "b"), False), (("a", ""), False)])
def test_ranks_that_say_the_same_and_those_that_do_not(words, same):
    store = HashStore()
    first, second = (StoreChannel(store, rank=rank, world_size=2, timeout=LIMIT) for rank in range(2))
    second.publish("state/1", f"{words[1]}\n")
    assert Control(first).all_take(1, words[0]) == (same, True)
    second.publish("state/2", f"{words[0]}\n{words[1]}")
    assert Control(first).all_take(2, words[0], words[0]) == (True, same)


def asked_at(control: Control, finished: int) -> int | None:
    control.boundary(finished)
    return control.snapshot_due(finished)


def test_a_snapshot_is_due_after_the_same_step_on_all_ranks():
    store = HashStore()
    ahead, behind = (Control(StoreChannel(store, rank=rank, world_size=2, timeout=LIMIT)) for rank in range(2))
    assert (asked_at(ahead, 4), asked_at(behind, 3)) == (None, None)
    for control in (ahead, behind):
        control.take(TakeSnapshot(number=1))
    assert asked_at(ahead, 5) == 1
    assert asked_at(behind, 4) is None
    assert asked_at(behind, 5) == 1
    for control in (ahead, behind):
        assert control.snapshot_due(5) == 1, "until it is taken"
        control.snapshot_done(1)
        assert asked_at(control, 6) is None


def test_runs_of_one_store_do_not_see_each_other():
    store = HashStore()
    for run in ("run-1", "run-2"):
        control = Control(StoreChannel(PrefixStore(run, store), rank=0, world_size=1, timeout=LIMIT))
        control.boundary(0)
        control.take(Stop())
        with pytest.raises(StopRun):
            control.boundary(1)


@pytest.mark.parametrize("seed", range(20))
def test_threads_on_a_real_store(seed):
    """Ranks as threads, told by other threads at any moment; a barrier in each step stands for the exchange of gradients."""
    draw = random.Random(seed)
    world_size = draw.choice([2, 3])
    store = HashStore()
    controls = [Control(StoreChannel(store, rank=rank, world_size=world_size, timeout=LIMIT)) for rank in range(world_size)]
    exchange = threading.Barrier(world_size)
    finished = [0] * world_size
    begun = threading.Event()
    errors: list[BaseException] = []

    def train(rank: int) -> None:
        own = random.Random(seed * 10 + rank)
        try:
            while True:
                controls[rank].boundary(finished[rank])
                if own.random() < 0.3:
                    threading.Event().wait(own.random() * 2e-3)
                exchange.wait(LIMIT.total_seconds())
                finished[rank] += 1
                if finished[rank] == 3:
                    begun.set()
        except StopRun:
            controls[rank].close()
        except BaseException as error:
            errors.append(error)
            exchange.abort()

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(world_size)]
    for thread in ranks:
        thread.start()
    assert begun.wait(LIMIT.total_seconds())
    for rank in draw.sample(range(world_size), world_size):
        controls[rank].take(Stop())
        if draw.random() < 0.5:
            threading.Event().wait(draw.random() * 5e-3)
    for thread in ranks:
        thread.join(LIMIT.total_seconds())
    assert errors == []
    assert not any(thread.is_alive() for thread in ranks)
    assert len(set(finished)) == 1
    assert finished[0] >= 3


class Seat:
    """A rank on a thread of its own that takes steps, each with an exchange; `moment` says what happened to it last."""

    def __init__(self, store: HashStore, rank: int, exchange: threading.Barrier) -> None:
        self.finished, self.paused = 0, threading.Event()
        self.going_on = threading.Event()
        self.taken: list[tuple[int, int]] = []
        self.takes, self.took = threading.Event(), threading.Event()
        self.shares: list[tuple[int, list[float]]] = []
        self.control = Control(StoreChannel(store, rank=rank, world_size=exchange.parties, timeout=LIMIT), pausing=self._pausing)
        self.control.on_speeds = lambda speeds: self.shares.append((self.finished, list(speeds)))
        self._exchange = exchange
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()

    @contextlib.contextmanager
    def _pausing(self, _number: int):
        self.going_on.clear()
        self.paused.set()
        yield
        self.paused.clear()
        self.going_on.set()

    def _take(self) -> None:
        number = self.control.snapshot_due(self.finished)
        if number is not None:
            self.control.snapshot_done(number)
            self.takes.set()
            if all(self.control.all_take(number, f"step {self.finished}")):
                self.taken.append((number, self.finished))
                self.took.set()

    def _train(self) -> None:
        with contextlib.suppress(StopRun):
            while True:
                self.control.boundary(self.finished, self._take)
                self._take()
                self._exchange.wait(LIMIT.total_seconds())
                self.finished += 1
        self.control.close()


@pytest.fixture
def seats():
    store, exchange = HashStore(), threading.Barrier(3)
    return [Seat(store, rank, exchange) for rank in range(3)]


def tell(seats: Sequence[Seat], order: Order) -> None:
    for seat in seats:
        seat.control.take(order)


def end(seats: Sequence[Seat]) -> None:
    tell(seats, Stop())
    for seat in seats:
        seat.thread.join(LIMIT.total_seconds())
    assert not any(seat.thread.is_alive() for seat in seats)
    assert len({seat.finished for seat in seats}) == 1


def test_all_ranks_wait_at_the_same_step_until_they_are_to_go_on(seats):
    for number in (1, 2):
        tell(seats, Pause(number=number))
        assert all(seat.paused.wait(LIMIT.total_seconds()) for seat in seats)
        steps = {seat.finished for seat in seats}
        assert len(steps) == 1
        tell(seats, EndPause(number=number))
        assert all(seat.going_on.wait(LIMIT.total_seconds()) for seat in seats)
    end(seats)


def test_a_stop_ends_a_pause_where_it_is(seats):
    tell(seats, Pause(number=1))
    assert all(seat.paused.wait(LIMIT.total_seconds()) for seat in seats)
    steps = {seat.finished for seat in seats}
    end(seats)
    assert {seat.finished for seat in seats} == steps


def test_a_snapshot_that_is_asked_for_in_a_pause_is_taken_there(seats):
    tell(seats, Pause(number=1))
    assert all(seat.paused.wait(LIMIT.total_seconds()) for seat in seats)
    steps = seats[0].finished
    tell(seats, TakeSnapshot(number=7))
    assert all(seat.took.wait(LIMIT.total_seconds()) for seat in seats)
    tell(seats, EndPause(number=1))
    end(seats)
    assert [seat.taken for seat in seats] == [[(7, steps)]] * 3


def test_who_hears_of_a_snapshot_in_a_pause_before_the_stop_waits_for_nobody_who_has_left(seats):
    tell(seats, Pause(number=1))
    assert all(seat.paused.wait(LIMIT.total_seconds()) for seat in seats)
    steps = {seat.finished for seat in seats}
    began = time.monotonic()
    tell(seats[:1], Stop())
    tell(seats[1:], TakeSnapshot(number=7))
    tell(seats[:1], TakeSnapshot(number=7))
    assert all(seat.takes.wait(LIMIT.total_seconds()) for seat in seats[1:])
    end(seats)
    assert time.monotonic() - began < LIMIT.total_seconds() / 2
    assert {seat.finished for seat in seats} == steps
    assert [seat.taken for seat in seats] == [[]] * 3


SHARES = SetShares(number=3, speeds=[2.0, 1.0, 1.0])


@pytest.mark.parametrize("orders", [[SHARES, Pause(number=1)], [Pause(number=1), SHARES]], ids=["shares first", "pause first"])
def test_other_shares_are_in_force_from_the_same_step_on_also_beside_a_pause(seats, orders):
    for order in orders:
        tell(seats, order)
    assert all(seat.paused.wait(LIMIT.total_seconds()) for seat in seats)
    tell(seats, EndPause(number=1))
    end(seats)
    assert len({seat.shares[0][0] for seat in seats}) == 1
    assert [seat.shares[0][1] for seat in seats] == [[2.0, 1.0, 1.0]] * 3


def test_a_pause_that_is_over_holds_up_nobody_whom_it_reaches_late(seats):
    tell(seats[:2], Pause(number=1))
    tell(seats[:2], EndPause(number=1))
    seats[2].control.take(EndPause(number=1))
    seats[2].control.take(Pause(number=1))
    end(seats)


def test_a_rank_that_is_through_makes_nobody_wait():
    store = HashStore()
    through, behind = (Control(StoreChannel(store, rank=rank, world_size=2, timeout=LIMIT)) for rank in range(2))
    through.close()
    for control in (through, behind):
        control.take(Pause(number=1))
    behind.boundary(0)
    behind.boundary(1)


def test_who_leaves_in_a_step_is_not_waited_for_with_its_snapshot():
    """An error of one rank, in the very step behind which all were to take a snapshot."""
    store = HashStore()
    leaving, staying = (Control(StoreChannel(store, rank=rank, world_size=2, timeout=LIMIT)) for rank in range(2))
    for control in (leaving, staying):
        control.boundary(0)
        control.take(TakeSnapshot(number=1))
    leaving.close()
    staying.boundary(1)
    assert staying.snapshot_due(1) == 1
    assert staying.all_take(1, "here") == (False, True)


def test_a_rank_knows_of_a_snapshot_before_others_count_on_it():
    """Otherwise it could go on into the next step, where it waits for others that wait for its snapshot."""
    finished = 5

    class Posted(Ledger):
        def set(self, key: str, value: str) -> None:
            super().set(key, value)
            threading.Thread(target=goes_on).start()

    def goes_on() -> None:
        control.boundary(finished)
        due.append(control.snapshot_due(finished))
        arrived.set()

    due: list[int | None] = []
    arrived = threading.Event()
    for number in range(1, 200):  # threads take turns by chance
        control = Control(StoreChannel(Posted(), rank=0, world_size=1, timeout=LIMIT))  # type: ignore[arg-type]
        control.boundary(finished - 1)
        arrived.clear()
        control.take(TakeSnapshot(number=number))
        assert arrived.wait(LIMIT.total_seconds())
        assert due.pop() == number
