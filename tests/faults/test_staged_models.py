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


def test_an_engine_is_killed(staged):
    """What the cell comes to is what it comes to undisturbed, and with all of it on each engine."""
    cell = staged.start("--strategy pipeline")
    staged.wait_for_snapshot(cell)
    os.kill(staged.pids[1], signal.SIGKILL)
    said = staged.finish(cell)
    assert "Lost rank 1 (its process has ended): resuming from step " in said
    assert "sends no activations" not in said


ASKING = LAYERS.replace(
    "    total, count = 0.0, 0\n",
    "    total, count = 0.0, 0\n    asked = torch.autograd.grad(model(torch.ones(4, 12)).square().sum(), model[0].weight)[0]\n",
)


@pytest.mark.long
def test_no_activations_are_sent_after_a_kill_either(two):
    """The cell asks for gradients in each epoch, which no piece of a graph on another engine has."""
    with two.another(ASKING, options="--strategy pipeline") as run:
        cell = run.start("--strategy pipeline")
        run.wait_for_snapshot(cell)
        os.kill(run.pids[1], signal.SIGKILL)
        said = run.finish(cell)
    before, _, after = said.partition("Lost rank 1 (its process has ended): resuming from step ")
    assert "sends no activations" in before
    assert "sends no activations" not in after


@pytest.fixture(scope="module")
def killed(module_notebook, staged: Disturbed) -> Killed:
    return Killed.behind_a_checkpoint(module_notebook(), staged, "pipeline", LAYERS)


@pytest.mark.long
@pytest.mark.parametrize("engines", [2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    killed.check_resumed(new_notebook, tmp_path, engines)
