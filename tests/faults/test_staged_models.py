"""``--strategy pipeline``: each engine has a stage of the model, of its gradients and of moments, and none of it is lost with one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.disturbed import SETUP, Disturbed, Killed

LAYERS = SETUP.replace("nn.BatchNorm1d", "nn.LayerNorm")  # so that activations are handed on


@pytest.fixture(scope="module")
def staged(two):
    with two.another(LAYERS) as run:
        yield run


@pytest.fixture(scope="module")
def hybrid(module_notebook):
    return Disturbed(module_notebook(), 4, LAYERS, options="--mesh dp=2,pp=2")


def kill(run, rank, options):
    """Kill an engine behind a snapshot, from which its pipeline goes on to what it comes to undisturbed."""
    cell = run.start(options)
    run.wait_for_snapshot(cell)
    os.kill(run.pids[rank], signal.SIGKILL)
    said = run.finish(cell)
    assert f"Lost rank {rank} (its process has ended): resuming from step " in said
    assert "hands no activations" not in said


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_an_engine_is_killed(staged, rank):
    """What the cell comes to is what it comes to undisturbed, and with all of it on each engine."""
    kill(staged, rank, "--strategy pipeline")


@pytest.mark.long
def test_all_engines_are_killed(staged):
    cell = staged.start("--strategy pipeline")
    staged.wait_for_snapshot(cell)
    for pid in staged.pids:
        os.kill(pid, signal.SIGKILL)
    assert "Lost ranks 0, 1 (their processes have ended): resuming from step " in staged.finish(cell)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 3])
def test_an_engine_of_two_pipelines_is_killed(hybrid, rank):
    """To the bits of the same mesh undisturbed."""
    kill(hybrid, rank, "--mesh dp=2,pp=2")


@pytest.fixture(scope="module")
def killed(module_notebook, staged: Disturbed) -> Killed:
    return Killed.behind_a_checkpoint(module_notebook(), staged, "pipeline", LAYERS)


@pytest.mark.long
@pytest.mark.parametrize("engines", [2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    killed.check_resumed(new_notebook, tmp_path, engines)
