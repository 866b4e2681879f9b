"""Past runs as the sidebar asks for them: lists, curves in as many points as a view can show, names, tags, comparisons."""

import math
import sqlite3
from contextlib import closing

import pytest

from jupyter_dtrain.errors import StoreError
from jupyter_dtrain.protocol import Command, RunCell
from jupyter_dtrain.runs.archive import RunArchive
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.database import DATABASE
from jupyter_dtrain.runs.record import CellOrigin
from jupyter_dtrain.runs.store import RunStore

# The tables as the first version had them.
VERSION_1 = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, phase TEXT NOT NULL,
    world_size INTEGER NOT NULL, started REAL NOT NULL, ended REAL, error TEXT, arguments TEXT NOT NULL,
    owner_host TEXT NOT NULL, owner_pid INTEGER NOT NULL, owner_created REAL NOT NULL, seen REAL NOT NULL
);
CREATE TABLE curves (
    curve INTEGER PRIMARY KEY, number INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, UNIQUE (number, name)
);
CREATE TABLE points (curve INTEGER NOT NULL REFERENCES curves ON DELETE CASCADE, step INTEGER NOT NULL, time REAL NOT NULL, value REAL);
CREATE INDEX points_of_curve ON points (curve);
INSERT INTO runs VALUES (1, 'old', 'digits', 'finished', 2, 1000.0, 1010.0, NULL, '{"engines": 2}', 'here', 1, 1.0, 1010.0);
INSERT INTO curves VALUES (1, 1, 'loss');
INSERT INTO points VALUES (1, 1, 1001.0, 0.5), (1, 2, 1002.0, 0.25);
PRAGMA user_version = 1;
"""


def add(store, run_id, name, step, time, value):
    store.add_points(run_id, [(name, Curve(step=step, time=time, value=value))])


@pytest.fixture
def store(tmp_path):
    with closing(RunStore(tmp_path / "dtrain-runs")) as store:
        yield store


@pytest.fixture
def archive(store):
    with closing(RunArchive(store.folder)) as archive:
        yield archive


def ask(archive, name, **options):
    return archive.answer(Command(id="c1", name=name, **options))


def record(store, name, cell="train()\n", losses=(0.5, 0.25), **arguments):
    run_id = store.create_run(name, cell, 2, arguments, {"python": "3.11", "packages": {"torch": "2.13.0"}})
    steps = list(range(1, len(losses) + 1))
    add(store, run_id, "loss", steps, [1000.0 + step for step in steps], list(losses))
    store.finish_run(run_id, "finished")
    return run_id


def test_runs_are_listed_newest_first_with_where_they_got_to(store, archive):
    assert ask(archive, "list_runs").runs == []
    first, second = record(store, "first"), record(store, "second", losses=(1.0, 0.75, math.nan))
    empty = store.create_run("empty", "", 1, {}, {})
    runs = ask(archive, "list_runs").runs
    assert [(run.run_id, run.name, run.steps, run.loss, run.phase) for run in runs] == [
        (empty, "empty", 0, None, "running"),
        (second, "second", 3, None, "finished"),
        (first, "first", 2, 0.25, "finished"),
    ]


def test_a_run_is_renamed_tagged_and_deleted(store, archive):
    run_id = record(store, "digits")
    ask(archive, "rename_run", run_id=run_id, text=" a better name ")
    ask(archive, "tag_run", run_id=run_id, text="baseline, cpu,, baseline")
    (run,) = ask(archive, "list_runs").runs
    assert (run.name, run.tags) == ("a better name", ["baseline", "cpu"])
    with pytest.raises(StoreError, match="needs a name"):
        ask(archive, "rename_run", run_id=run_id, text="  ")
    with pytest.raises(StoreError, match="no run"):
        ask(archive, "tag_run", run_id="none", text="x")
    ask(archive, "delete_run", run_id=run_id)
    assert ask(archive, "list_runs").runs == []
    assert not (store.folder / run_id).exists()


def test_curves_come_whole_or_one_by_one_and_those_of_devices_do_not(store, archive):
    run_id = record(store, "digits")
    add(store, run_id, "accuracy", [2], [1002.0], [0.9])
    add(store, run_id, "device/0/utilization", [2], [1002.0], [87.0])
    assert [points.name for points in ask(archive, "get_curves", run_id=run_id).points] == ["loss", "accuracy"]
    (device,) = ask(archive, "get_curves", run_id=run_id, curve="device/").points
    assert (device.name, device.value) == ("device/0/utilization", [87.0])
    (loss,) = ask(archive, "get_curves", run_id=run_id, curve="loss", first=2).points
    assert (loss.run_id, loss.step, loss.time, loss.value, loss.thinned) == (run_id, [2], [1002.0], [0.25], False)


def test_a_long_curve_is_thinned_and_keeps_its_spikes_and_its_gap(store, archive):
    values = [math.sin(step / 1000) for step in range(1, 50_001)]
    values[12_344], values[40_000], values[30_000] = 99.0, -99.0, math.nan
    run_id = record(store, "long", losses=values)
    (loss,) = ask(archive, "get_curves", run_id=run_id, limit=500).points
    assert 250 < len(loss.step) <= 500
    assert loss.step == sorted(set(loss.step))
    assert loss.thinned
    assert (loss.step[0], loss.value[0], loss.step[-1], loss.value[-1]) == (1, values[0], 50_000, values[-1])
    seen = dict(zip(loss.step, loss.value, strict=True))
    assert (seen[12_345], seen[40_001], seen[30_001]) == (99.0, -99.0, None)

    # A part of it, closer: every point, once there is room for them.
    (part,) = ask(archive, "get_curves", run_id=run_id, first=12_300, last=12_399, limit=500).points
    assert part.step == list(range(12_300, 12_400))
    assert part.value == values[12_299:12_399]
    assert not part.thinned


def test_an_overview_answers_for_a_curve_as_long_as_its_points_are_the_same(store, archive):
    values = [math.sin(step / 1000) for step in range(1, 50_001)]
    values[12_344], values[30_000] = 99.0, math.nan
    run_id = record(store, "long", losses=values)
    whole = store.points(run_id, "loss")
    store.keep_overviews(run_id, {"loss": whole.thinned(10_000)})

    def drawn(**options):
        (loss,) = ask(archive, "get_curves", run_id=run_id, curve="loss", **options).points
        return loss

    with closing(sqlite3.connect(store.folder / DATABASE)) as connection:  # nothing but the overview knows that
        connection.execute("UPDATE points SET value = -7.0 WHERE step = 20000")
        connection.commit()
    for limit in (None, 500):
        loss = drawn(limit=limit)
        assert loss.thinned
        assert -7.0 not in loss.value
        assert 250 < len(loss.step) <= (limit or 10_000)
        assert {step: value for step, value in zip(loss.step, loss.value, strict=True) if value is None} == {30_001: None}
        assert (loss.step[0], loss.step[-1], max(value for value in loss.value if value is not None)) == (1, 50_000, 99.0)
        assert all(values[step - 1] == value for step, value in zip(loss.step, loss.value, strict=True) if value is not None)
    assert -7.0 in drawn(first=19_000, last=21_000, limit=500).value  # a part of it: its points
    add(store, run_id, "loss", [50_001], [51_001.0], [0.25])
    assert (drawn().step[-1], -7.0 in drawn().value) == (50_001, True)
    store.keep_overviews(run_id, {"loss": whole.thinned(10_000)})
    store.cut_curves(run_id, 40_000)
    assert drawn().step[-1] == 40_000
    store.keep_overviews(run_id, {"loss": whole.thinned(10_000)})
    with closing(sqlite3.connect(store.folder / DATABASE)) as connection:
        connection.execute("UPDATE overviews SET points = 'none of ours'")
        connection.commit()
    assert drawn().step[-1] == 40_000
    store.delete_run(run_id)
    with store._database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM overviews").fetchone()[0] == 0


def test_two_runs_are_compared_by_arguments_versions_and_cells(store, archive):
    before = record(store, "one", "lr = 0.1\ntrain(lr)\n", engines=2, numbers="global")
    after = record(store, "two", "lr = 0.2\ntrain(lr)\n", engines=4, numbers="global", device=None)
    comparison = ask(archive, "compare_runs", run_id=before, other_run_id=after).comparison
    assert (comparison.before, comparison.after) == (before, after)
    assert [(change.name, change.before, change.after) for change in comparison.changes] == [
        ("engines", "2", "4"),
        ("device", None, "not given"),
    ]
    assert comparison.cell == ["@@ -1,2 +1,2 @@", "-lr = 0.1", "+lr = 0.2", " train(lr)"]
    assert (comparison.hyperparameters, comparison.functions, comparison.unknown) == ([], [], [])
    same = ask(archive, "compare_runs", run_id=before, other_run_id=before).comparison
    assert (same.changes, same.cell) == ([], [])
    (store.folder / before / "cell.py").unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        ask(archive, "compare_runs", run_id=before, other_run_id=after)


def test_two_runs_are_compared_by_hyperparameters_and_functions(store, archive):
    def begin(name, values, **functions):
        run_id = store.create_run(name, "train()\n", 2, {"vary": name}, {"git commit": "a" * 40}, functions=functions)
        store.set_hyperparameters(run_id, values)
        return run_id

    step = "def step(x):\n    return x\n"
    before = begin("one", {"optimizer": "Adam", "optimizer.lr": 0.1, "seed": 0}, step=step, old="old = 1\n")
    after = begin("two", {"optimizer": "SGD", "optimizer.lr": 0.1, "seed": 1, "warm": None}, step=step.replace("x\n", "2 * x\n"))
    comparison = ask(archive, "compare_runs", run_id=before, other_run_id=after).comparison
    assert [(change.name, change.before, change.after) for change in comparison.hyperparameters] == [
        ("optimizer", "Adam", "SGD"),
        ("seed", "0", "1"),
        ("warm", None, "not given"),
    ]
    assert [(function.name, function.lines) for function in comparison.functions] == [
        ("old", ["@@ -1 +0,0 @@", "-old = 1"]),
        ("step", ["@@ -1,2 +1,2 @@", " def step(x):", "-    return x", "+    return 2 * x"]),
    ]
    assert (comparison.changes, comparison.cell) == ([], [])
    runs = {run.name: run.hyperparameters for run in ask(archive, "list_runs").runs}
    assert runs["one"] == {"optimizer": "Adam", "optimizer.lr": 0.1, "seed": 0}


def test_every_curve_is_listed_by_its_last_value_and_its_extremes(store, archive):
    run_id = record(store, "digits", losses=(3.0, 0.5, math.nan, 1.5, math.inf), best="accuracy:max")
    add(store, run_id, "accuracy", [2], [1002.0], [0.9])
    add(store, run_id, "device/0/utilization", [2], [1002.0], [87.0])
    add(store, run_id, "odd", [2], [1002.0], [math.nan])

    def metrics():
        (run,) = ask(archive, "list_runs").runs
        assert run.best == "accuracy:max"
        return {metric.name: (metric.last, metric.low, metric.high) for metric in run.metrics}

    assert metrics() == {"loss": (None, 0.5, 3.0), "accuracy": (0.9, 0.9, 0.9), "odd": (None, None, None)}
    assert store.cut_curves(run_id, 1) == {"loss": 4, "accuracy": 1, "odd": 1}
    assert metrics() == {"loss": (3.0, 3.0, 3.0), "accuracy": (None, None, None), "odd": (None, None, None)}


def test_the_cell_of_a_run_is_found(store, archive):
    known = store.create_run("one", "train()\n", 2, {}, {}, CellOrigin(cell_id="c7", notebook="digits.ipynb"))
    assert ask(archive, "find_cell", run_id=known).cell == RunCell(run_id=known, text="train()\n", cell_id="c7", notebook="digits.ipynb")
    unknown = record(store, "two")
    assert ask(archive, "find_cell", run_id=unknown).cell == RunCell(run_id=unknown, text="train()\n", cell_id=None, notebook=None)
    (store.folder / unknown / "run.json").write_text("of an older version")
    assert ask(archive, "find_cell", run_id=unknown).cell.cell_id is None


def test_commands_that_name_no_run_or_are_not_about_runs_are_refused(archive):
    with pytest.raises(StoreError, match="Which run"):
        ask(archive, "delete_run")
    with pytest.raises(StoreError, match="not a question about past runs"):
        ask(archive, "stop_run")


def test_a_record_of_the_first_version_is_brought_up_to_date(store, archive):
    store.folder.mkdir()
    with closing(sqlite3.connect(store.folder / DATABASE)) as connection:
        connection.executescript(VERSION_1)
    (run,) = ask(archive, "list_runs").runs
    assert (run.name, run.tags, run.steps, run.loss, run.metrics) == ("digits", [], 2, 0.25, [])
    (store.folder / "old").mkdir()
    (store.folder / "old" / "cell.py").write_text("train()\n")
    assert ask(archive, "compare_runs", run_id="old", other_run_id="old").comparison.unknown == ["digits", "digits"]
    ask(archive, "tag_run", run_id="old", text="kept")
    (run,) = ask(archive, "list_runs").runs
    assert [(metric.name, metric.last, metric.low, metric.high) for metric in run.metrics] == [("loss", 0.25, 0.25, 0.5)]
    assert store.get_run("old").tags == ["kept"]
    assert store.points("old", "loss").value == [0.5, 0.25]


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_a_thinned_curve_has_its_ends_and_its_extremes_beside_a_gap(store, archive, limit):
    values = [1.0 + step / 1000 for step in range(1, 1001)]
    values[0], values[1], values[500], values[501], values[-1] = 3.5, 9.0, math.nan, 50.0, math.nan
    run_id = record(store, "long", losses=values)
    (loss,) = ask(archive, "get_curves", run_id=run_id, limit=limit).points
    assert len(loss.step) <= max(6, limit)
    assert (loss.step[0], loss.value[0], loss.step[-1], loss.value[-1]) == (1, 3.5, 1000, None)
    finite = [value for value in loss.value if value is not None]
    assert (min(finite), max(finite)) == (values[2], 50.0)
