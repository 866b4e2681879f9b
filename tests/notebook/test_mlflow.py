"""MLflow in a notebook: what a cell logs is logged once, in the run that the notebook sees, whoever began it."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS, LOGGED

SETUP = """
import os, pathlib
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
mlflow.set_tracking_uri({store!r})
mlflow.set_experiment("digits")

def log(metrics):
    mlflow.log_metrics(metrics, step=len(losses))

def runs():
    client = mlflow.MlflowClient()
    found = mlflow.search_runs(output_format="list", order_by=["attributes.start_time"])
    told = lambda run: [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")]
    return [(run.info.status, told(run), run.data.params) for run in found]
"""


@pytest.fixture
def logging(notebook, tmp_path):
    """The shared notebook with the library's module and a store of the test's own, and no run when the test is over."""
    notebook.run(IMPORTS + SETUP.replace("{store!r}", repr(f"file:{tmp_path}/mlruns")) + LOGGED)
    yield notebook
    notebook.run("mlflow.end_run()")


@pytest.mark.long
def test_a_run_of_the_notebook_goes_along(logging):
    logging.run("run = mlflow.start_run()\nmlflow.log_param('lr', 0.1)")
    cell = logging.run("%%distribute --engines 2\ntrain(log)\nprint(mlflow.active_run().info.run_id == run.info.run_id)")
    assert (cell.stdout, cell.stderr) == ("True\n", "")
    logging.run("train(log)\n%distribute stop\n%distribute start -n 3 --device cpu")  # the engines do not end it
    logging.run("%%distribute --engines 3\ntrain(log)")
    assert logging.value("(runs(), losses)") == ([("RUNNING", losses := logging.value("losses"), {"lr": "0.1"})], losses)
    logging.run("%%distribute --engines 2\nmlflow.end_run()")
    assert logging.value("mlflow.active_run() is None and [status for status, *_ in runs()]") == ["FINISHED"]


def test_a_run_of_the_cell_ends_there_or_comes_home(logging):
    artifacts = (
        "\n    mlflow.log_dict({'a': 1}, 'some.json')\n    pathlib.Path('new.txt').write_text('new')\n    mlflow.log_artifact('new.txt')"
    )
    begin = f"with mlflow.start_run() as run:\n    mlflow.log_params({{'k': 3}})\n    train(log){artifacts}"
    cell = logging.run(
        f"%%distribute --engines 2\n{begin}\n    print(sorted(file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id)))"
    )
    assert (cell.stdout, cell.stderr) == ("['new.txt', 'some.json']\n", "")
    assert logging.value("(runs(), mlflow.active_run())") == ([("FINISHED", logging.value("losses"), {"k": "3"})], None)
    logging.run(
        "%%distribute --engines 2\nrun = mlflow.start_run()\nmlflow.log_metric('other', 1, synchronous=False)\nmlflow.flush_async_logging()"
    )
    assert logging.value("mlflow.active_run().info.run_id == run.info.run_id")
    logging.run("mlflow.log_param('after', 1)\nmlflow.end_run()")
    assert logging.value("runs()[1]") == ("FINISHED", [], {"after": "1"})
    assert logging.value("mlflow.get_run(run.info.run_id).data.metrics") == {"other": 1}


def test_an_error_of_the_cell_fails_its_run(logging):
    cell = logging.fail("%%distribute --engines 2\nwith mlflow.start_run():\n    train(log)\n    mlflow.log_param('k', 1)\n    1 / 0")
    assert cell.error[0] == "ZeroDivisionError"
    cell = logging.fail("%%distribute --engines 2\nwith mlflow.start_run():\n    mlflow.log_metric('bad?', 1)\n    train(log)")
    assert cell.error[0] == "MlflowException"
    assert logging.value("[status for status, *_ in runs()]") == ["FAILED", "FAILED"]
    assert logging.run("%%distribute --engines 2\nwith mlflow.start_run():\n    train(log)\nlen(losses)").result == "8"
