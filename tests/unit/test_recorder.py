"""The recorder: however the ranks' reports arrive, the curve is the same, and no step is lost or counted twice."""

import json
import math
import random
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_dtrain.errors import ProtocolError
from jupyter_dtrain.protocol import ClusterUpdate, DeviceUse, Notice, Points, Progress, RankStarted, RunUpdate, Scalars, Steps
from jupyter_dtrain.runs.aggregation import GlobalSteps
from jupyter_dtrain.runs.curves import LEAST_LIMIT, MAX_VIEW_POINTS, Curve
from jupyter_dtrain.runs.rank_reports import MAX_NOTICES
from jupyter_dtrain.runs.recorder import RunRecorder
from jupyter_dtrain.runs.thinning import kept_positions
from tests.fakes import Clock


def recorder(world_size=2, **options):
    return RunRecorder(run_id="2026-11-21-153012-digits", name="digits", world_size=world_size, started=1000.0, **options)


def steps(rank, numbers, losses, *, weight=0.5, learning_rate=0.1, samples=8):
    """Return a report of `rank`, whose step n was finished at second 1000 + n."""
    return Steps(
        rank=rank,
        step=list(numbers),
        time=[1000.0 + number for number in numbers],
        loss=list(losses),
        weight=[weight] * len(losses),
        learning_rate=[learning_rate] * len(losses),
        samples=[samples] * len(losses),
    )


def started(rank):
    return RankStarted(rank=rank, world_size=2, host="here", pid=100 + rank, device="cpu", device_name="a cpu")


def curve(messages, name="loss"):
    """Return the points of `name` in `messages` as {step: value}."""
    found = [message for message in messages if isinstance(message, Points) and message.name == name]
    assert len(found) <= 1, "one message for a curve"
    return dict(zip(found[0].step, found[0].value, strict=True)) if found else {}


def only(messages, kind):
    return [message for message in messages if isinstance(message, kind)]


def stored(run, name="loss"):
    return {rows.name: rows.points for rows in run.take_rows()}.get(name, Curve())


def test_the_loss_of_a_step_is_the_mean_over_the_global_batch_once_all_ranks_have_reported_it():
    run = recorder()
    run.apply(steps(0, [1, 2], [1.0, 2.0], weight=0.75))
    assert curve(run.drain()) == {}
    run.apply(steps(1, [1], [3.0], weight=0.25))
    assert curve(run.drain()) == {1: 1.5}
    run.apply(steps(1, [2, 3], [6.0, 0.0], weight=0.25))
    assert curve(run.drain()) == {2: 3.0}
    update = run.run_update()
    assert (update.step, update.loss, update.learning_rate) == (2, 3.0, 0.1)


def test_a_rank_without_a_loss_or_without_samples_does_not_count():
    run = recorder(3)
    run.apply(steps(0, [1, 2], [1.0, 1.0], weight=0.5))
    run.apply(steps(1, [1, 2], [4.0, 4.0], weight=0.25))
    run.apply(steps(2, [1], [None], weight=0.25))
    run.apply(steps(2, [2], [math.nan], weight=0.0, samples=0))  # the mean over no samples
    assert curve(run.drain()) == {1: 2.0, 2: 2.0}
    assert run.notices() == []


def test_steps_in_which_no_rank_saw_a_loss_are_steps_all_the_same():
    run = recorder(1)
    run.apply(steps(0, [1, 2, 3], [0.5, None, None]))
    messages = run.drain()
    assert curve(messages) == {1: 0.5}
    assert curve(messages, "learning_rate") == {1: 0.1, 2: 0.1, 3: 0.1}
    assert (run.run_update().step, run.run_update().loss) == (3, 0.5)


def test_a_report_that_comes_twice_counts_once():
    run = recorder(1)
    for _ in range(2):
        run.apply(steps(0, [1, 2], [0.5, 0.25], samples=8))
    assert curve(run.drain()) == {1: 0.5, 2: 0.25}
    assert stored(run).step == [1, 2]


def test_a_step_that_a_rank_has_passed_over_comes_out_without_it():
    run = recorder()
    run.apply(steps(0, [1, 2], [1.0, 1.0]))
    run.apply(steps(1, [2], [3.0]))
    assert curve(run.drain()) == {1: 1.0, 2: 2.0}


def test_other_ranks_that_go_on_report_again_what_has_not_come_out():
    run = recorder()
    run.apply(steps(0, [1, 2], [1.0, 2.0]))
    run.apply(steps(1, [1], [3.0]))
    run.begin_again(1)
    run.apply(steps(0, [1, 2, 3], [2.0, 4.0, 5.0]))
    assert curve(run.drain()) == {1: 2.0, 2: 4.0, 3: 5.0}
    run.begin_again(3)
    for rank in range(3):
        run.apply(steps(rank, [3, 4], [5.0, float(rank)]))
    assert curve(run.drain()) == {4: 1.0}
    assert run.run_update().world_size == 3


def test_a_dead_rank_holds_back_nothing_once_the_run_ends():
    unknown = recorder()
    unknown.apply(steps(0, [1, 2], [1.0, 2.0]))
    unknown.finish("failed", "an engine died")
    assert curve(unknown.drain()) == {1: 1.0, 2: 2.0}


@pytest.mark.parametrize("seed", range(20))
def test_a_step_comes_out_as_soon_as_nobody_can_report_it_any_more(seed):
    rng = random.Random(seed)
    merged = GlobalSteps(5)
    reached, out = [0] * 5, []
    for _ in range(200):
        rank = rng.randrange(5)
        first = reached[rank] + 1
        reached[rank] += rng.randint(1, 3)
        out += merged.add(steps(rank, list(range(first, reached[rank] + 1)), [1.0] * (reached[rank] - first + 1)))
        assert len(out) == min(reached)
        assert [step.step for step in out] == list(range(1, len(out) + 1))


def test_a_rank_that_never_reports_holds_back_a_bounded_number_of_steps():
    merged = GlobalSteps(2, max_lag=10)
    out = [step.step for number in range(100) for step in merged.add(steps(0, [number], [1.0]))]
    assert out == list(range(90))
    late = merged.add(steps(1, range(100), [3.0] * 100))
    assert [(step.step, step.loss) for step in late] == [(number, 2.0) for number in range(90, 100)]


def test_malformed_events_are_errors_that_change_nothing():
    run = recorder(1)
    uneven = Steps(rank=0, step=[1, 2], time=[1.0], loss=[0.5], weight=[1.0], learning_rate=[0.1], samples=[8])
    scalars = Scalars(rank=0, name="accuracy", first=0, step=[1], time=[], value=[])
    for event in (uneven, scalars, steps(1, [1], [0.5]), ClusterUpdate(phase="running")):
        with pytest.raises(ProtocolError):
            run.apply(event)
    run.apply(steps(0, [1], [0.5]))
    assert curve(run.drain()) == {1: 0.5}


@st.composite
def reports(draw):
    """Return (world size, {step: {rank: (loss, weight)}}, the ranks' batches in some order of arrival)."""
    world_size = draw(st.integers(1, 4))
    numbers = draw(st.lists(st.integers(0, 60), unique=True, max_size=25).map(sorted))
    loss = st.none() | st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])
    table = {n: {r: (draw(loss), draw(st.floats(0, 1))) for r in range(world_size)} for n in numbers}
    queues = []
    for rank in range(world_size):
        cuts = sorted(draw(st.lists(st.integers(0, len(numbers)), max_size=5)))
        bounds = [0, *cuts, len(numbers)]
        queues.append([(rank, numbers[a:b]) for a, b in pairwise(bounds)])
    arrivals = []
    while any(queues):
        arrivals.append(draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    return world_size, table, arrivals


def expected(parts):
    """Return the loss of one step the slow and obvious way; ``...`` if there is none."""
    counted = [(loss, weight) for loss, weight in parts.values() if loss is not None and weight > 0]
    total = sum(weight for _, weight in counted)
    return sum(loss * weight for loss, weight in counted) / total if counted else ...


@settings(max_examples=150, deadline=None)
@given(reports(), st.lists(st.booleans(), min_size=1))
def test_any_interleaving_of_the_ranks_gives_the_same_curve(case, drains):
    world_size, table, arrivals = case
    run, at_once = recorder(world_size), recorder(world_size)
    pieces, rows, snapshot = [], [], {}
    for position, (rank, numbers) in enumerate(arrivals):
        report = Steps(
            rank=rank,
            step=numbers,
            time=[1000.0 + number + rank / 10 for number in numbers],
            loss=[table[number][rank][0] for number in numbers],
            weight=[table[number][rank][1] for number in numbers],
            learning_rate=[None if rank else 0.1] * len(numbers),
            samples=[rank + 1] * len(numbers),
        )
        run.apply(report)
        if drains[position % len(drains)]:
            pieces.append(run.drain())
            rows.append(run.take_rows())
        snapshot = {points.name: points for points in run.snapshot_points()}
        # A snapshot has what was drained and no more, so that drains go on from it.
        assert snapshot.get("loss", Points(run_id="", name="", step=[], time=[], value=[])).step == [n for p in pieces for n in curve(p)]
    for rank, numbers in sorted(arrivals):
        for number in numbers:
            at_once.apply(
                Steps(
                    rank=rank,
                    step=[number],
                    time=[1000.0 + number + rank / 10],
                    loss=[table[number][rank][0]],
                    weight=[table[number][rank][1]],
                    learning_rate=[None if rank else 0.1],
                    samples=[rank + 1],
                )
            )
    pieces.append(run.drain())
    rows.append(run.take_rows())

    wanted = {number: value for number, parts in table.items() if (value := expected(parts)) is not ...}
    got = {number: value for piece in pieces for number, value in curve(piece).items()}
    assert list(got) == list(wanted)
    for number, value in wanted.items():
        assert got[number] == (pytest.approx(value, rel=1e-9, abs=1e-9) if math.isfinite(value) else None)
    whole = at_once.drain()
    for name in ("loss", "learning_rate", "samples_per_second"):  # to the last bit
        assert curve(whole, name) == {number: value for piece in pieces for number, value in curve(piece, name).items()}
    assert [n for piece in rows for r in piece if r.name == "loss" for n in r.points.step] == list(wanted)
    assert run.run_update().step == max(table, default=0)
    assert run.run_update().samples_per_second == at_once.run_update().samples_per_second
    last = max(table, default=0)
    run.finish("finished")
    if len(table) > 1:
        counted = sum(range(1, world_size + 1)) * (len(table) - 1)
        assert run.run_update().samples_per_second == pytest.approx(counted / (last - min(table)))


def test_samples_per_second_count_all_ranks_over_the_last_seconds_and_at_the_end_over_the_run():
    run = recorder()
    slow = [*range(1, 21)]  # one step a second
    for rank in (0, 1):
        run.apply(steps(rank, slow[:1], [1.0]))
    assert run.run_update().samples_per_second is None
    for rank in (0, 1):
        run.apply(steps(rank, slow[1:], [1.0] * 19))
    assert run.run_update().samples_per_second == 16.0
    fast = [1020 + i / 10 for i in range(1, 101)]  # ten steps a second
    for rank in (0, 1):
        run.apply(
            Steps(
                rank=rank,
                step=list(range(21, 121)),
                time=fast,
                loss=[1.0] * 100,
                weight=[0.5] * 100,
                learning_rate=[None] * 100,
                samples=[8] * 100,
            )
        )
    assert run.run_update().samples_per_second == pytest.approx(160.0)
    run.finish("finished")
    assert run.run_update().samples_per_second == pytest.approx(16 * 119 / 29)
    rate = curve(run.drain(), "samples_per_second")
    assert len(rate) == 29  # one a second: steps 2 to 20, then every tenth
    assert rate[20] == 16.0


@pytest.mark.parametrize("late", [False, True], ids=["all reported before", "one rank reports within the pause"])
def test_a_pause_does_not_count_as_slow_steps(late):
    run = recorder()
    run.apply(steps(0, range(1, 11), [1.0] * 10))
    if not late:
        run.apply(steps(1, range(1, 11), [1.0] * 10))
    run.set_phase("paused")
    if late:
        run.apply(steps(1, range(1, 11), [1.0] * 10))
    assert run.run_update().samples_per_second == 16.0, "the last known rate"
    run.set_phase("running")
    for rank in (0, 1):
        report = steps(rank, range(11, 21), [1.0] * 10)
        run.apply(replace(report, time=[second + 600 for second in report.time]))
    assert run.run_update().samples_per_second == 16.0
    run.finish("finished")
    assert run.run_update().samples_per_second == 16.0
    assert set(curve(run.drain(), "samples_per_second").values()) == {16.0}


def test_a_loss_that_is_not_finite_is_a_gap_for_views_and_itself_in_the_store():
    run = recorder(1)
    run.apply(steps(0, [1, 2, 3], [0.5, math.nan, math.inf]))
    messages = run.drain()
    assert curve(messages) == {1: 0.5, 2: None, 3: None}
    (update,) = only(messages, RunUpdate)
    assert (update.step, update.loss, update.odd_loss) == (3, None, "inf")
    (notice,) = only(messages, Notice)
    assert "not finite at step 2" in notice.text
    json.dumps([message.to_json() for message in messages], allow_nan=False)
    value = stored(run).value
    assert (value[0], value[2]) == (0.5, math.inf)
    assert math.isnan(value[1])


def test_the_time_before_a_run_is_resumed_does_not_count():
    clock = Clock(1000.0)
    run = recorder(clock=clock, idle=3600.0)
    clock.now = 4612.0
    assert run.run_update().elapsed == 12.0


def test_the_phases_of_a_run():
    clock = Clock(1000.0)
    run = recorder(clock=clock)
    assert run.run_update().phase == "starting"
    run.apply(started(0))
    assert run.run_update().phase == "starting"
    run.apply(started(1))
    assert run.run_update().phase == "running"
    run.set_phase("stopping")
    run.apply(steps(0, [1], [0.5]))
    clock.now = 1012.0
    assert (run.run_update().phase, run.run_update().elapsed) == ("stopping", 12.0)
    with pytest.raises(ValueError, match="running"):
        run.finish("running")
    run.finish("stopped")
    clock.now = 2000.0
    run.finish("failed", "too late")
    run.set_phase("running")
    (update,) = only(run.drain(), RunUpdate)
    assert (update.phase, update.error, update.elapsed) == ("stopped", None, 12.0)


def test_progress_and_logged_values_are_those_of_rank_0():
    run = recorder()
    for rank, batch in ((0, 3), (1, 9)):
        run.apply(Progress(rank=rank, epoch=2, batch=batch, batches=None))
        for name in ("accuracy", "loss"):
            run.apply(Scalars(rank=rank, name=name, first=0, step=[1, 2], time=[1.0, 2.0], value=[0.5 + rank, 0.75 + rank]))
    messages = run.drain()
    (update,) = only(messages, RunUpdate)
    assert (update.epoch, update.batch, update.batches) == (2, 3, None)
    assert curve(messages, "accuracy") == {1: 0.5, 2: 0.75}
    assert curve(messages, "loss") == {}  # measured, not logged
    assert curve(messages, "loss (logged)") == {1: 0.5, 2: 0.75}


def test_logged_points_are_counted_for_who_follows_them():
    run, seen = recorder(world_size=1), []
    run.on_logged = lambda name, first, points: seen.append((name, first, [(step, value) for step, _, value in points]))

    def log(first, numbers):
        run.apply(Scalars(rank=0, name="score", first=first, step=numbers, time=[0.0] * len(numbers), value=[n / 8 for n in numbers]))

    log(0, [1, 2])
    log(1, [2, 3])  # an engine has been replaced, and tells the second again
    log(1, [2])
    run.go_back(2, {"score": 1})
    log(2, [3])
    assert seen == [("score", 1, [(1, 0.125), (2, 0.25)]), ("score", 3, [(3, 0.375)]), ("score", 3, [(3, 0.375)])]


def test_device_use_is_the_latest_of_each_rank_for_views_and_all_of_it_for_the_store():
    run = recorder()
    uses = [
        DeviceUse(rank=rank, time=time, utilization=10.0 * time, memory_used=100, memory_total=200) for rank in (1, 0) for time in (1, 2)
    ]
    for use in uses:
        run.apply(use)
    latest = [uses[3], uses[1]]
    assert only(run.drain(), DeviceUse) == latest
    assert run.drain() == []
    assert run.devices() == latest
    rows = {rows.name: rows.points for rows in run.take_rows()}
    assert rows["device/0/utilization"] == Curve(step=[0, 0], time=[1, 2], value=[10.0, 20.0])
    assert rows["device/1/memory_used"].value == [100, 100]


def test_a_notice_of_all_ranks_is_shown_once_and_stays_for_views_that_open_later():
    run = recorder()
    for rank in (0, 1):
        run.apply(Notice(rank=rank, text="the loader `test` is not split"))
    messages = run.drain()
    assert only(messages, Notice) == run.notices() == [Notice(rank=0, text="the loader `test` is not split")]
    assert [type(message) for message in messages].index(RunUpdate) < [type(message) for message in messages].index(Notice)  # a run's
    for number in range(10 * MAX_NOTICES):
        run.apply(Notice(rank=0, text=f"step {number}"))
    assert len(run.notices()) == MAX_NOTICES


def test_a_run_that_goes_back_takes_back_what_came_after_and_is_told_it_again():
    run = recorder(world_size=2)

    def report(numbers, losses, *, first):
        for rank in range(2):
            run.apply(steps(rank, numbers, losses))
        run.apply(Scalars(rank=0, name="accuracy", first=first, step=numbers, time=[0.0] * len(numbers), value=losses))

    report([1, 2, 3], [3.0, 2.0, 1.0], first=0)
    run.drain()
    report([4, 5], [0.5, 0.25], first=3)
    assert [len(rows.points) for rows in run.take_rows() if rows.name in ("loss", "accuracy")] == [5, 5]
    run.go_back(2, {"loss": 3, "accuracy": 3})
    update = only(run.drain(), RunUpdate)[-1]
    assert (update.step, update.loss) == (2, 2.0)
    for points in run.snapshot_points():
        assert points.name not in ("loss", "accuracy") or points.step == [1, 2]
    report([3, 4], [1.5, 1.25], first=2)
    messages = run.drain()
    for name in ("loss", "accuracy"):
        assert curve(messages, name) == {3: 1.5, 4: 1.25}
    assert stored(run).step == [3, 4]
    assert only(messages, RunUpdate)[-1].step == 4


def test_nothing_new_is_nothing_to_send():
    run = recorder(1)
    assert len(run.drain()) == 1  # that there is a run
    assert run.drain() == []
    run.apply(steps(0, [1], [0.5]))
    assert len(only(run.drain(), RunUpdate)) == 1
    assert run.drain() == []


@pytest.mark.parametrize("watched", [True, False])
def test_views_of_a_long_run_get_a_bounded_curve_that_keeps_its_spikes_and_the_store_gets_all(watched):
    run = recorder(1)
    total = 6 * MAX_VIEW_POINTS
    values = [math.sin(number / 1000) for number in range(total)]
    values[4321], values[50_005], values[30_000] = 99.0, -99.0, math.nan
    stored_steps = []
    for first in range(0, total, 1000):
        run.apply(steps(0, range(first, first + 1000), values[first : first + 1000]))
        stored_steps += stored(run).step
        if watched:
            run.drain()
    if not watched:
        assert len(curve(run.drain())) <= MAX_VIEW_POINTS
    (loss,) = [points for points in run.snapshot_points() if points.name == "loss"]
    assert MAX_VIEW_POINTS / 2 < len(loss.step) <= MAX_VIEW_POINTS
    assert loss.step == sorted(loss.step)
    seen = dict(zip(loss.step, loss.value, strict=True))
    assert (seen[4321], seen[50_005], seen[30_000]) == (99.0, -99.0, None)
    halves = [sum(1 for step in loss.step if step < total / 2), sum(1 for step in loss.step if step >= total / 2)]
    assert min(halves) > 0.8 * max(halves)  # as dense at the beginning as at the end
    assert stored_steps == list(range(total))
    (outline,) = [points for points in run.outline(100) if points.name == "loss"]
    assert len(outline.step) <= 100 and outline.thinned
    assert {99.0, -99.0, None} <= set(outline.value)
    assert (outline.step[0], outline.value[0], outline.step[-1], outline.value[-1]) == (0, values[0], total - 1, values[-1])


def test_an_outline_has_what_was_fetched_and_what_was_not():
    run = recorder(1)
    run.apply(steps(0, [1, 2], [0.5, 0.4]))
    run.drain()
    run.apply(steps(0, [3], [0.3]))
    assert curve(run.outline(100)) == {1: 0.5, 2: 0.4, 3: 0.3}
    assert curve(run.drain()) == {3: 0.3}


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats()), max_size=300), st.integers(LEAST_LIMIT, 100))
def test_thinning_keeps_the_ends_the_extremes_the_order_and_the_limit(points, limit):
    points = sorted(points, key=lambda point: point[0])
    whole = Curve(step=[step for step, _ in points], time=[float(i) for i in range(len(points))], value=[value for _, value in points])
    thin = whole.thinned(limit)
    assert len(thin) <= limit
    assert (thin.time[:1], thin.time[-1:]) == (whole.time[:1], whole.time[-1:])
    assert set(thin.time) <= set(whole.time)
    assert thin.time == sorted(thin.time)
    finite = [value for value in whole.value if math.isfinite(value)]
    if finite:
        assert min(finite) in thin.value
        assert max(finite) in thin.value
    if len(finite) < len(whole):
        assert None in thin.finite()


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 1.0, 2.0, -1.0, math.nan, math.inf])), min_size=1, max_size=60))
def test_thinning_keeps_the_first_of_the_smallest_and_of_the_largest_of_each_stretch(points):
    points = sorted(points, key=lambda point: point[0])
    steps, values = [step for step, _ in points], [value for _, value in points]
    kept = kept_positions(steps, values, 5)
    width = steps[-1] - steps[0] + 1
    finite = [value for value in values if math.isfinite(value)]
    expected = {0, len(steps) - 1, *(values.index(extreme(finite)) for extreme in (min, max) if finite)}
    for stretch in range(5):
        inside = [place for place, step in enumerate(steps) if (step - steps[0]) * 5 // width == stretch]
        if inside:
            expected.add(min(inside, key=lambda place: values[place] if math.isfinite(values[place]) else math.inf))
            expected.add(max(inside, key=lambda place: values[place] if math.isfinite(values[place]) else math.inf))
    assert kept == sorted(expected)


def test_rows_are_kept_until_they_are_taken_and_not_at_all_without_a_store():
    run = recorder(1)
    run.apply(steps(0, [1], [0.5]))
    run.apply(steps(0, [2], [0.25]))
    assert stored(run) == Curve(step=[1, 2], time=[1001.0, 1002.0], value=[0.5, 0.25])
    assert run.take_rows() == []
    run.drop_rows()
    run.apply(steps(0, [3], [0.125]))
    assert run.take_rows() == []
    assert curve(run.drain()) == {1: 0.5, 2: 0.25, 3: 0.125}


def test_events_and_drains_from_several_threads_lose_nothing():
    run = recorder()
    total = 600
    pieces = []
    done = threading.Event()

    def report(rank):
        for number in range(total):
            run.apply(steps(rank, [number], [1.0]))

    def view():
        while not done.is_set():
            pieces.append(curve(run.drain()))

    reporters = [threading.Thread(target=report, args=(rank,)) for rank in (0, 1)]
    viewer = threading.Thread(target=view)
    for thread in (*reporters, viewer):
        thread.start()
    for thread in reporters:
        thread.join(60)
    done.set()
    viewer.join(60)
    pieces.append(curve(run.drain()))
    assert [step for piece in pieces for step in piece] == list(range(total))
    assert stored(run).step == list(range(total))
