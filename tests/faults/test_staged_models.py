"""``--strategy pipeline``: each engine has a stage of the model, of its gradients and of moments, and none of it is lost with one."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.disturbed import ROUNDED, SETUP, STATE, Disturbed, kill_behind_a_checkpoint, resume_killed
from tests.notebook.kernel import difference

LAYERS = SETUP.replace("nn.BatchNorm1d", "nn.LayerNorm")  # so that activations are handed on


@pytest.fixture(scope="module")
def staged(module_notebook):
    return Disturbed(module_notebook(), 2, LAYERS)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_an_engine_is_killed(staged, rank):
    """What the cell comes to is what it comes to undisturbed, and with all of it on each engine."""
    cell = staged.start("--strategy pipeline")
    staged.wait_for_snapshot(cell)
    os.kill(staged.pids[rank], signal.SIGKILL)
    said = staged.finish(cell)
    assert f"Lost rank {rank} (its process has ended): resuming from step " in said
    assert "hands no activations" not in said


@pytest.mark.long
def test_all_engines_are_killed(staged):
    cell = staged.start("--strategy pipeline")
    staged.wait_for_snapshot(cell)
    for pid in staged.pids:
        os.kill(pid, signal.SIGKILL)
    assert "Lost ranks 0, 1 (their processes have ended): resuming from step " in staged.finish(cell)


@pytest.fixture(scope="module")
def killed(module_notebook, staged: Disturbed) -> tuple[Path, object, object]:
    """Return the folder of a notebook whose kernel was killed in the midst of a cell, and what that is to come to."""
    folder = kill_behind_a_checkpoint(module_notebook(), "pipeline", LAYERS)
    staged.go()
    return folder, staged.expected, staged.notebook.value(ROUNDED)


@pytest.mark.long
@pytest.mark.parametrize("engines", [2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    folder, expected, rounded = killed
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    notebook = new_notebook(tmp_path)
    resume_killed(notebook, engines)
    if engines == 2:  # to the last bit: all that is rounded below too, and random numbers, which can be drawn once
        assert notebook.value(STATE) == expected
    else:
        assert difference(notebook.value(ROUNDED), rounded) is None
