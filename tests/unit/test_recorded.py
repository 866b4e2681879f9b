"""The record of runs as a user's own code reads it."""

from __future__ import annotations

import math
import sys
from contextlib import closing

import pandas
import pytest

import jupyter_dtrain
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.protocol import Command
from jupyter_dtrain.runs.archive import RunArchive
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.store import RunStore

VALUES = [0.1 + 0.2, 1 / 3, math.nan, 5e-324, math.inf, -1.5, 1e300]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a notebook's runs: two, of which the second has curves; the working directory is the notebook's."""
    monkeypatch.chdir(tmp_path)
    with closing(RunStore(tmp_path / "dtrain-runs")) as store:
        store.finish_run(store.create_run("first", "train()\n", 1, {}, {}, hyperparameters={"lr": 0.1, "name": "mine"}), "failed", "no")
        run_id = store.create_run("second", "train()\n", 2, {"strategy": "auto"}, {})
        store.set_hyperparameters(run_id, {"optimizer": "SGD", "lr": 0.2, "loss": "mse"})
        steps = list(range(1, len(VALUES) + 1))
        store.add_points(run_id, [("loss", Curve(step=steps, time=[1e9 + step / 7 for step in steps], value=VALUES))])
        store.add_points(run_id, [("accuracy", Curve(step=[7, 7], time=[1.0, 2.0], value=[0.5, 0.75]))])
        store.add_points(run_id, [("device/0/utilization", Curve(step=[7], time=[1.0], value=[87.0]))])
        store.finish_run(run_id, "finished")
    return tmp_path / "dtrain-runs"


def test_a_table_has_a_row_for_each_run(folder):
    table = jupyter_dtrain.runs()
    assert list(table["name"]) == ["first", "second"]
    assert list(table["state"]) == ["failed", "finished"]
    assert list(table["lr"]) == [0.1, 0.2]
    assert (table["config.name"][0], table["config.loss"][1], table["optimizer"][1]) == ("mine", "mse", "SGD")
    assert (table["loss"][1], table["accuracy"][1]) == (1e300, 0.75)
    assert str(table["started"].dtype).startswith("datetime64")
    assert not [name for name in table if name.startswith("device")]
    assert (table["seconds"] >= 0).all()


def test_a_folder_without_runs_is_an_empty_table(tmp_path):
    assert list(jupyter_dtrain.runs(tmp_path).columns[:3]) == ["run_id", "name", "state"]
    with pytest.raises(UsageError, match="No runs are recorded"):
        jupyter_dtrain.find_run(folder=tmp_path)


def test_the_history_is_what_the_sidebar_is_given_to_the_bit(folder):
    run = jupyter_dtrain.find_run("second")
    with closing(RunArchive(folder)) as archive:
        shown = archive.answer(Command(id="c", name="get_curves", run_id=run.run_id)).points
    history = run.history()
    assert list(dict.fromkeys(history["curve"])) == [points.name for points in shown] == ["loss", "accuracy"]
    for points in shown:
        mine = history[history["curve"] == points.name]
        assert [step.item() for step in mine["step"].to_numpy()] == points.step
        assert [time.hex() for time in mine["time"]] == [time.hex() for time in points.time]
        drawn = [value.hex() if math.isfinite(value) else None for value in mine["value"]]
        assert drawn == [None if value is None else value.hex() for value in points.value]
    assert [value.hex() for value in run.points("loss")["value"]] == [value.hex() for value in VALUES]
    assert run.history("device/0/utilization")["value"].tolist() == [87.0]


def test_one_run_says_what_it_is(folder):
    run = jupyter_dtrain.find_run()
    assert (run.name, run.cell, run.world_size, run.arguments) == ("second", "train()\n", 2, {"strategy": "auto"})
    assert run.hyperparameters["optimizer"] == "SGD"
    assert run.curves == ["loss", "accuracy", "device/0/utilization"]
    assert repr(run) == f"<second: finished, {run.run_id}>"
    with pytest.raises(UsageError, match="the last ones are: first, second"):
        jupyter_dtrain.find_run("third")
    with pytest.raises(UsageError, match="no curve 'lost'"):
        run.history("lost")


def test_without_pandas_a_sentence_says_what_to_do(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        jupyter_dtrain.runs()
    assert jupyter_dtrain.find_run("second").points("accuracy") == {"step": [7, 7], "time": [1.0, 2.0], "value": [0.5, 0.75]}
    assert pandas.__name__ == "pandas"
