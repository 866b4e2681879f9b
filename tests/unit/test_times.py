"""Where the time of a rank goes: the parts are all of it, and nothing is lost when a rank begins again."""

import threading
import time

import pytest
import torch

from jupyter_dtrain.engine.timing import BACKWARD, COMMUNICATION, DATA, FORWARD, Counted, Timing
from jupyter_dtrain.protocol import RankStarted, TimeSplit
from jupyter_dtrain.runs.rank_reports import PARTS, TimeSplits
from jupyter_dtrain.runs.recorder import RunRecorder
from tests.fakes import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(100.0)
    monkeypatch.setattr("jupyter_dtrain.engine.timing.perf_counter", clock)
    return clock


def parts(timing, step=0):
    """Return the parts that took any time."""
    (split,) = timing.drain(step)
    return {part: getattr(split, part) for part in PARTS if getattr(split, part)}


def split(rank, **seconds):
    return TimeSplit(rank=rank, step=1, **dict.fromkeys(PARTS, 0.0) | seconds)


def test_each_part_gets_its_time_and_together_they_are_all_of_it(clock):
    timing = Timing(1, torch.device("cpu"))
    clock.pass_(5)  # before the cell
    timing.start()
    clock.pass_(1)
    before = timing.switch(DATA)
    clock.pass_(2)
    timing.switch(before)
    outer = timing.switch(BACKWARD)
    clock.pass_(3)
    with Counted(COMMUNICATION):
        clock.pass_(4)
    clock.pass_(0.5)
    timing.switch(outer)
    clock.pass_(0.25)
    assert parts(timing) == {"other": 1.25, "data": 2, "backward": 3.5, "communication": 4}
    timing.stop()
    clock.pass_(7)  # after the cell
    assert timing.drain(0) == [], "nothing new"
    with Counted(COMMUNICATION):
        clock.pass_(1)
    assert timing.drain(0) == []


def test_a_part_that_goes_on_is_reported_while_it_does(clock):
    timing = Timing(0, torch.device("cpu"))
    timing.num_workers = 2
    timing.start()
    timing.switch(FORWARD)
    clock.pass_(1)
    assert parts(timing) == {"forward": 1}
    clock.pass_(2)
    (found,) = timing.drain(9)
    assert isinstance(found, TimeSplit)
    assert (found.forward, found.step, found.num_workers, found.rank) == (3, 9, 2, 0)
    timing.stop()


def test_reports_that_another_thread_asks_for_change_nothing():
    timing = Timing(0, torch.device("cpu"))
    before_it = time.perf_counter()
    timing.start()
    started = time.perf_counter()
    reports = []
    done = threading.Event()

    def report():
        while not done.is_set():
            reports.extend(timing.drain(0))

    reporter = threading.Thread(target=report)
    reporter.start()
    for _ in range(20_000):
        before = timing.switch(COMMUNICATION)
        timing.switch(before)
    ended = time.perf_counter()
    timing.stop()
    after_it = time.perf_counter()
    done.set()
    reporter.join(30)
    reports += timing.drain(0)
    told = sum(getattr(reports[-1], part) for part in PARTS)
    assert ended - started < told + 1e-6
    assert told < after_it - before_it + 1e-6
    assert all(getattr(found, part) >= 0 for found in reports for part in PARTS)


def test_on_a_device_the_time_is_that_of_its_own_stream(monkeypatch):
    """The device is behind: what it has not come to yet is reported later, and nobody waits for it."""
    asked_at: list[float] = []  # seconds on the device when it comes to each event, in the order of recording
    reached = 0.0

    class FakeEvent:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = asked_at.pop(0)

        def query(self):
            return self.at <= reached

        def elapsed_time(self, later):
            return 1000 * (later.at - self.at)  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    asked_at += [0.0, 1.0, 3.0, 6.0, 10.0, 10.5]
    timing = Timing(0, torch.device("cuda:0"))
    timing.start()
    before = timing.switch(FORWARD)
    timing.switch(BACKWARD)
    reached = 3.0
    assert parts(timing) == {"other": 2.0}
    timing.switch(before)
    timing.stop()
    assert timing.drain(0) == [], "the device is where it was"
    reached = 10.5
    assert parts(timing) == {"other": 2.5, "forward": 3.0, "backward": 4.0}


def test_a_rank_that_begins_again_goes_on_from_what_was_spent():
    times = TimeSplits()
    times.start(0)
    times.add(split(0, data=1.0))
    times.add(split(0, data=3.0, forward=2.0))
    times.start(0)
    times.add(split(0, data=0.5))
    assert times.all() == [split(0, data=3.5, forward=2.0)]


def test_views_get_what_has_changed_and_a_new_view_all_of_it():
    run = RunRecorder(run_id="r", name="r", world_size=2)
    for rank in (1, 0):
        run.apply(RankStarted(rank=rank, world_size=2, host="here", pid=1, device="cpu", device_name="cpu"))
        run.apply(split(rank, data=1.0 + rank))
    messages = [message for message in run.drain() if isinstance(message, TimeSplit)]
    assert messages == run.times() == [split(0, data=1.0), split(1, data=2.0)]
    run.apply(split(1, data=4.0))
    assert [message for message in run.drain() if isinstance(message, TimeSplit)] == [split(1, data=4.0)]


def test_the_line_that_takes_the_rest_of_the_time_is_named(tmp_path):
    cell = tmp_path / "cell.py"
    cell.write_text("def train(wait, stop):\n    while not stop.is_set():\n        wait(0.005)\n        sum(range(10))\n")
    namespace: dict[str, object] = {}
    exec(compile(cell.read_text(), str(cell), "exec"), namespace)
    stop, timings = threading.Event(), []

    def run():
        timings.append(Timing(0, torch.device("cpu")))
        timings[0].start()
        namespace["train"](time.sleep, stop)  # type: ignore[operator]
        with Counted(FORWARD):  # whatever line that is in
            seen.append(timings[0].drain(2))

    seen: list[list] = []
    thread = threading.Thread(target=run)
    thread.start()
    found, times = split(0), TimeSplits()
    deadline = time.monotonic() + 60
    while not found.busiest_line:
        assert time.monotonic() < deadline, "no line stands out"
        time.sleep(0.001)  # as reports come, which are no part of the cell
        found = next((times.add(one) for timing in timings for one in timing.drain(1) if isinstance(one, TimeSplit)), found)
    stop.set()
    thread.join(60)
    assert (found.busiest_line, found.busiest_code) == (3, "wait(0.005)")
    assert seen[0][0].busiest_line == 3
