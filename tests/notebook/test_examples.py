"""The demonstration as a user runs it: with its line of magic, and without."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebook.kernel import Notebook

EXAMPLES = Path(__file__).parents[2] / "examples"


def accuracies(text: str) -> list[float]:
    """Return the table's validation accuracies, in percent."""
    return [float(row) for row in re.findall(r"^ *\d+ +[\d.]+ +([\d.]+)%", text, re.MULTILINE)]


def train(opened: Notebook, example: nbformat.NotebookNode) -> list[float]:
    """Execute the whole notebook; return the accuracies, the last of them that of the notebook's own model."""
    printed = {cell.id: opened.run(cell.source).stdout for cell in example.cells if cell.cell_type == "code"}
    found = re.match(r"(\d+) of (\d+) validation digits", printed["use"])
    assert found, printed["use"]
    return [*accuracies(printed["train"]), 100 * int(found[1]) / int(found[2])]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_notebook_learns_the_same_without_its_magic(new_notebook):
    distributed = nbformat.read(EXAMPLES / "digits.ipynb", as_version=4)
    plain = nbformat.read(EXAMPLES / "digits.ipynb", as_version=4)
    for cell in plain.cells:
        cell.source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
    here = train(new_notebook(), plain)
    there = train(new_notebook(), distributed)
    assert len(here) == len(there) == 9
    assert here[-1] > 95
    assert there == pytest.approx(here, abs=1.0)  # percent: 3 of 360 digits, for the order in which floats are added


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_taxi_rides_cost_the_same_without_the_magic(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    of_runs = []
    for magic in (True, False):
        notebook = nbformat.read(EXAMPLES / "taxi.ipynb", as_version=4)
        for cell in notebook.cells if not magic else ():
            cell.source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
        printed = "".join(output.text for cell in notebook.cells[3:] for output in cell.outputs if output.get("name") == "stdout")
        of_runs.append([float(number) for number in re.findall(r"([\d.]+) \$", printed)])
    assert len(of_runs[0]) == 5
    assert of_runs[0] == pytest.approx(of_runs[1], abs=0.011)  # a cent, as it is printed
    assert of_runs[0][3] < 1


GALLERY = {
    "cnn": "accuracy > 0.9",
    "transformer": "losses[-1] < 0.8 * losses[0]",
    "vae": "losses[-1] < 0.8 * losses[0]",
    "gan": "loss_critic.isfinite().item() and loss_generator.isfinite().item()",
    "tabular": "val_loss < 2",
    "ema": "losses[-1] < losses[0] and not next(average.parameters()).equal(next(model.parameters()))",
}
"""Small notebooks, and what holds when they have run."""


WITH_ENGINES_OF_THEIR_OWN = {
    "sweep": "val_loss == min(run.points('val_loss')['value'][-1] for run in trials) and len(trials) == 6",
    "resume": "torch.equal(weights, again) and len(losses) == 24",
}


def test_the_gallery_learns(notebook):
    learns(notebook, GALLERY)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_gallery_of_sweeps_and_detached_runs_learns(notebook):
    learns(notebook, WITH_ENGINES_OF_THEIR_OWN)


def learns(notebook, gallery):
    notebook.run("torch.set_default_dtype(torch.float32)")
    try:
        for example, holds in gallery.items():
            for cell in nbformat.read(EXAMPLES / f"{example}.ipynb", as_version=4).cells:
                if cell.cell_type == "code":
                    notebook.run(cell.source)
            assert notebook.value(holds) is True, example
    finally:
        notebook.run("torch.set_default_dtype(torch.float64)")


@pytest.mark.parametrize("example", ["digits", "taxi", *GALLERY, *WITH_ENGINES_OF_THEIR_OWN])
def test_the_notebook_is_stored_without_outputs(example):
    for cell in nbformat.read(EXAMPLES / f"{example}.ipynb", as_version=4).cells:
        assert cell.cell_type != "code" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_make_demo_prints_its_table():
    done = subprocess.run([sys.executable, EXAMPLES / "run_demo.py"], capture_output=True, text=True, timeout=300, check=True)
    heading = "epoch    loss  val accuracy  samples/s  engines"
    table = done.stdout[done.stdout.index(heading) :].splitlines()[1:9]
    assert [row.split()[0] for row in table] == [str(epoch) for epoch in range(1, 9)]
    assert {row.split()[4] for row in table} == {"2"}
    assert accuracies(table[-1])[0] > 95
    assert "make lab" in done.stdout
    assert done.stderr == ""
