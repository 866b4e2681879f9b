"""Weights & Biases in a notebook: what a cell logs is logged once, in the run that the notebook sees, whoever began it."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS, LOGGED

SETUP = """
import os
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
import wandb
"""


@pytest.fixture
def logging(notebook):
    """The shared notebook with PyTorch's and this library's modules, and no run when the test is over."""
    notebook.run(IMPORTS + SETUP + LOGGED)
    yield notebook
    notebook.run("wandb.finish()")


def test_a_run_of_the_notebook_goes_along(logging):
    logging.run("run = wandb.init(project='p', config={'lr': 0.1})\nconfig, log = wandb.config, run.log")
    cell = logging.run("%%distribute --engines 2\ntrain(wandb.log)\ntrain(run.log)\nprint(config.lr, wandb.config['lr'], run is wandb.run)")
    assert (cell.stdout, cell.stderr) == ("0.1 0.1 True\n", "")
    logging.run("%%distribute --engines 3\ntrain(log)\nconfig.update({'more': 2})")
    logging.run("run.log({'test': 5})")
    assert logging.value("run.step, run.summary['loss'] == losses[-1], run.summary['test'], config['more']") == (13, True, 5, 2)
    logging.run("%%distribute --engines 2\nwandb.finish()")
    assert logging.value("wandb.run") is None
    assert "wandb.init()" in logging.fail("%%distribute --engines 2\nwandb.log({'loss': 1})").error[1]


@pytest.mark.long
def test_a_run_of_the_cell_comes_home_or_ends_there(logging):
    before = len(list((logging.folder / "wandb").glob("offline-run-*")))
    begin = "%%distribute --engines 2\nrun = wandb.init(project='p', mode='offline', config={'k': 3})\ntrain(run.log)"
    logging.run(f"{begin}\nfirst = run.id\nwandb.finish()")
    assert logging.value("wandb.run") is None
    logging.run(begin)
    assert logging.value("run is wandb.run, run.id != first, run.step, dict(run.config)") == (True, True, 4, {"k": 3})
    logging.run("%distribute stop")  # with the engines that it was begun on
    logging.run("%distribute start -n 3 --device cpu")
    logging.run("%%distribute --engines 3\ntrain(wandb.log)")
    assert logging.value("run.step, run.summary['loss'] == losses[-1]") == (8, True)
    runs = sorted(path.name.rpartition("-")[2] for path in (logging.folder / "wandb").glob("offline-run-*"))
    assert logging.value("first") in runs
    assert logging.value("run.id") in runs
    assert len(runs) == before + 2, "one for each run, and not for each rank"
