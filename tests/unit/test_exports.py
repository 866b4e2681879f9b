"""A recorded run in other tools: written, and read back by the tool itself, to the bit where the tool keeps it."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
from contextlib import closing
from datetime import datetime

import pytest

import jupyter_dtrain
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.store import RunStore

LOSSES = [0.1 + 0.2, 1 / 3, math.nan, 1e-300, 7.25]
STARTED = 1.7e9
CELL = "for x, y in loader:\n    print('<script>alert(1)</script>')\n"


@pytest.fixture
def run(tmp_path):
    """A run with two curves, hyperparameters and tags."""
    folder = tmp_path / "dtrain-runs"
    with closing(RunStore(folder)) as store:
        run_id = store.create_run(
            "<b>mine</b>",
            CELL,
            2,
            {"engines": 2, "best": "accuracy:max"},
            {"packages": {"torch": "2.13"}},
            functions={"step": "def step(): ..."},
        )
        store.set_hyperparameters(run_id, {"optimizer": "SGD", "optimizer.lr": 0.1, "shuffle": True, "scheduler": None})
        steps = list(range(1, len(LOSSES) + 1))
        store.add_points(run_id, [("loss", Curve(step=steps, time=[STARTED + step / 4 for step in steps], value=LOSSES))])
        store.add_points(run_id, [("accuracy", Curve(step=[2, 5], time=[STARTED, STARTED + 1], value=[0.5, 0.75]))])
        store.add_points(run_id, [("device/0/utilization", Curve(step=[5], time=[STARTED], value=[87.0]))])
        store.tag_run(run_id, ["paper"])
        store.finish_run(run_id, "finished")
    return jupyter_dtrain.find_run(folder=folder)


def same(left, right):
    return [value.hex() for value in left] == [value.hex() for value in right]


def test_tensorboard_reads_every_point(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.util import tensor_util

    found = EventAccumulator(str(run.to_tensorboard(tmp_path / "logs", devices=True)), size_guidance={"tensors": 0})
    found.Reload()
    assert {"loss", "accuracy", "device/0/utilization"} <= set(found.Tags()["tensors"])
    losses = found.Tensors("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5]
    assert [event.wall_time for event in losses] == [STARTED + step / 4 for step in (1, 2, 3, 4, 5)]
    assert same([tensor_util.make_ndarray(event.tensor_proto).item() for event in losses], LOSSES)
    started = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG)
    values = metadata.parse_session_start_info_plugin_data(started.plugin_data.content).hparams
    assert (values["optimizer"].string_value, values["optimizer.lr"].number_value, values["shuffle"].string_value) == ("SGD", 0.1, "True")


def test_mlflow_reads_every_point(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    store = f"file:{tmp_path}/mlruns"
    made = run.to_mlflow(store, experiment="digits")
    client = mlflow.MlflowClient(store)
    found = client.get_run(made)
    assert (found.info.run_name, found.info.status) == ("<b>mine</b>", "FINISHED")
    assert found.data.params == {"optimizer": "SGD", "optimizer.lr": "0.1", "shuffle": "True", "scheduler": "None"}
    history = sorted(client.get_metric_history(made, "loss"), key=lambda metric: metric.step)
    assert [metric.step for metric in history] == [1, 2, 3, 4, 5]
    assert same([metric.value for metric in history], LOSSES)
    assert [metric.timestamp for metric in history] == [round((STARTED + step / 4) * 1000) for step in (1, 2, 3, 4, 5)]
    assert not [name for name in found.data.metrics if name.startswith("device")]
    assert client.get_experiment(found.info.experiment_id).name == "digits"


def records_of(file):
    """Return the messages in a file of W&B: the log format of LevelDB, here in one block."""
    from wandb.proto import wandb_internal_pb2

    data, place = file.read_bytes(), 7
    assert data[:4] == b":W&B"
    while place + 7 < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, place)
        assert kind == 1, "a whole record"
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data[place + 7 : place + 7 + length])
        yield record
        place += 7 + length


TRACKIO = """
import json, sys, trackio, jupyter_dtrain
run = jupyter_dtrain.find_run(folder=sys.argv[1])
for _ in range(2):
    made = run.to_trackio("digits")
from trackio.sqlite_storage import SQLiteStorage
(found,) = trackio.Api().runs("digits")
logs = SQLiteStorage.get_logs("digits", found.name, run_id=made)
print(json.dumps([found.name, found.id == made == run.run_id, found.config, logs], default=str))
"""


@pytest.mark.slow
def test_trackio_reads_every_point_of_a_run_that_is_written_twice(run, tmp_path):
    pytest.importorskip("trackio")
    where = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", TRACKIO, str(run.folder)]
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    name, is_it, config, logs = json.loads(done.stdout.splitlines()[-1])
    assert (name, is_it) == ("<b>mine</b>", True)
    assert (config["optimizer"], config["optimizer.lr"], config["scheduler"], config["tags"]) == ("SGD", 0.1, None, ["paper"])
    assert [row["step"] for row in logs] == [1, 2, 3, 4, 5]
    assert same([row["loss"] for row in logs], LOSSES)
    assert [row.get("accuracy") for row in logs] == [None, 0.5, None, None, 0.75]
    assert [datetime.fromisoformat(row["timestamp"]).timestamp() for row in logs] == [STARTED + step / 4 for step in range(1, 6)]


@pytest.mark.slow
def test_weights_and_biases_has_every_point_in_its_offline_file(run, tmp_path):
    folder = run.to_wandb(tmp_path / "exports", project="digits")
    (file,) = folder.glob("*.wandb")
    records = list(records_of(file))
    about = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (about.project, about.display_name, list(about.tags)) == ("digits", "<b>mine</b>", ["paper"])
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert (config["optimizer"], config["optimizer.lr"], config["scheduler"]) == ("SGD", 0.1, None)
    rows = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["_timestamp"] for row in rows] == [STARTED + step / 4 for step in (1, 2, 3, 4)] + [STARTED + 5 / 4]
    assert same([float(row["loss"]) for row in rows], LOSSES)
    assert [row.get("accuracy") for row in rows] == [None, 0.5, None, None, 0.75]


def test_a_tool_that_is_missing_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match="`pip install mlflow`"):
        run.to_mlflow(str(tmp_path))


def test_one_html_file_has_all_of_a_run_and_asks_for_nothing(run, tmp_path):
    text = run.to_html(tmp_path / "run.html").read_text(encoding="utf-8")
    assert "<script" not in text.replace("&lt;script", "")
    assert "<h1>&lt;b&gt;mine&lt;/b&gt;</h1>" in text
    assert "optimizer.lr" in text
    assert "def step(): ..." in text
    assert "&lt;script&gt;alert(1)" in text
    assert "paper" in text
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert "http" not in re.sub(r"data:[^\"]*|http-equiv", "", text)
    assert text.count("<img") == 1  # both curves, as SVG


def test_tags_are_added_and_removed(run):
    run.add_tags("best", " seed 3 ", "paper")
    assert run.tags == ["paper", "best", "seed 3"]
    run.remove_tags("paper", "never")
    assert jupyter_dtrain.runs(run.folder)["tags"][0] == "best, seed 3"
    for bad in ("a,b", " "):
        with pytest.raises(UsageError, match="not a tag"):
            run.add_tags(bad)
