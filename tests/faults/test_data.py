"""Rows of files over a lost engine and over resumes in the middle of an epoch, on other numbers of engines: each is used once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import difference
from tests.notebook.test_data import FEATURES, TABLE, TRAIN

PACED = """
import os, time
def pace():
    with open("steps", "ab") as file:
        file.write(b".")
    stops = [stop for stop in (1, 2) if len(used) > stop * every and not os.path.exists(f"stop{stop}")]
    time.sleep(0.3 if stops else 0.02)
"""
CELL = TRAIN + "        pace()\n"
LOADER = f'data.parquet("taxi", {FEATURES}).loader(batch_size=48)'
STATE = "(used, losses, [p.detach() for p in model.parameters()])"


@pytest.fixture(scope="module")
def table(module_notebook):
    """A notebook with a table, and what training on it comes to in one process."""
    notebook = module_notebook()
    notebook.run(IMPORTS + TABLE + PACED)
    notebook.run(f"make()\nloader = {LOADER}\n{TRAIN}")
    expected = notebook.value(STATE)
    for epoch in range(2):
        assert sorted(row for batch in expected[0][14 * epoch :][:14] for row in batch) == list(range(633))
    return notebook, expected


def test_killed_engine(table):
    notebook, expected = table
    notebook.run("%distribute start -n 2 --device cpu")
    pids = notebook.engines()
    notebook.run(f"make()\nevery = 3\nloader = {LOADER}")
    cell = notebook.start(f"%%distribute --engines 2\n{CELL}")
    steps = notebook.folder / "steps"
    notebook.wait(lambda: not cell.running or (steps.exists() and steps.stat().st_size >= 6), "step 6", cell)
    os.kill(pids[1], signal.SIGKILL)
    for stop in (1, 2):
        (notebook.folder / f"stop{stop}").touch()
    notebook.finish(cell)
    assert cell.ok, cell
    assert "Lost rank 1" in cell.stderr
    assert difference(notebook.value(STATE), expected) is None
    for name in ("stop1", "stop2", "steps"):
        (notebook.folder / name).unlink()


@pytest.mark.long
@pytest.mark.parametrize("every", [5], ids=["twice in an epoch"])
@pytest.mark.timeout(400)
def test_resumed_twice_on_other_numbers_of_engines(table, new_notebook, every):
    notebook, expected = table
    notebook.run(f"make()\nevery = {every}\nloader = {LOADER}")
    name = f"taxi{every}"
    cell = notebook.start(f"%%distribute --engines 2 --checkpoint-every {every} --name {name}\n{CELL}")
    for stop, engines in ((1, 3), (2, 1)):
        checkpoint = f"dtrain-runs/*/checkpoints/step-{stop * every:06}"
        stopped = lambda cell=cell, pattern=checkpoint: not cell.running or list(table[0].folder.glob(pattern))  # noqa: E731
        notebook.wait(stopped, "a checkpoint", cell)
        assert cell.running, cell
        notebook.interrupt()
        notebook.finish(cell)
        (notebook.folder / f"stop{stop}").touch()
        notebook = new_notebook(notebook.folder)
        notebook.run("%load_ext jupyter_dtrain")
        cell = notebook.start(f"%distribute resume {name} -n {engines}")
    notebook.finish(cell)
    assert cell.ok, cell
    assert f"{name}: resuming from step {2 * every}." in cell.stderr
    assert difference(notebook.value(STATE), expected) is None
    for left in ("stop1", "stop2"):
        (notebook.folder / left).unlink()
