"""``--strategy tensor``: each engine has columns of layers, of their gradients and of moments, and none of it is lost with one."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.conftest import one_of
from tests.faults.disturbed import ROUNDED, SETUP, Disturbed, Killed
from tests.notebook.kernel import difference


@pytest.fixture(scope="module")
def divided(two):
    """A notebook whose cell comes to the same bits each time under this strategy: layers are added up in its own order."""
    with two.another(options="--strategy tensor") as run:
        yield run


def test_the_cell_comes_to_what_it_comes_to_with_all_of_it_on_each_engine(divided, two):
    divided.go()
    found = divided.notebook.value(ROUNDED)
    two.go()
    assert difference(found, two.notebook.value(ROUNDED)) is None


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [1, 0]))
def test_an_engine_is_killed(divided, rank):
    cell = divided.start("--strategy tensor")
    divided.wait_for_snapshot(cell)
    os.kill(divided.pids[rank], signal.SIGKILL)
    assert f"Lost rank {rank} (its process has ended): resuming from step " in divided.finish(cell)


@pytest.mark.long
def test_all_engines_are_killed(divided):
    cell = divided.start("--strategy tensor")
    divided.wait_for_snapshot(cell)
    for pid in divided.pids:
        os.kill(pid, signal.SIGKILL)
    assert "Lost ranks 0, 1 (their processes have ended): resuming from step " in divided.finish(cell)


@pytest.mark.long
def test_before_there_is_a_snapshot(divided):
    cell = divided.start("--strategy tensor")
    divided.wait_for_step(1, cell)
    os.kill(divided.pids[1], signal.SIGKILL)
    assert "resuming from " in divided.finish(cell)


MORTAL = """
def die_in(place):
    import os, signal
    import torch.distributed as dist
    if os.path.exists("die") and open("die").read() == f"{place} {dist.get_rank()}":
        os.kill(os.getpid(), signal.SIGKILL)

class DiesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        die_in("backward")
        return gradient

class Mortal(nn.Module):
    def forward(self, x):
        die_in("forward")
        return DiesInBackward.apply(x).relu()
"""


@pytest.fixture(scope="module")
def groups(module_notebook):
    """Return a notebook whose cell runs on two groups of two engines, one of which dies where it is told to."""
    setup = SETUP.replace("nn.BatchNorm1d(96), nn.ReLU()", "nn.BatchNorm1d(96), Mortal()")
    setup = setup.replace("        optimizer.step()", "        die_in('step')\n        optimizer.step()")
    return Disturbed(module_notebook(), 4, MORTAL + setup, options="--mesh dp=2,tp=2")


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("place", ["forward", "backward", "step"])
def test_an_engine_of_two_groups_is_killed(groups, place, rank):
    """To the bits of the same mesh undisturbed."""
    cell = groups.start("--mesh dp=2,tp=2")
    groups.wait_for_snapshot(cell)
    told = groups.notebook.folder / "die"
    told.write_text(f"{place} {rank}")
    groups.notebook.wait(lambda: not psutil.pid_exists(groups.pids[rank]) or not cell.running, "its death", cell)
    told.unlink()
    assert f"Lost rank {rank} (its process has ended): resuming from step " in groups.finish(cell)


@pytest.fixture(scope="module")
def killed(module_notebook, divided: Disturbed) -> Killed:
    return Killed.behind_a_checkpoint(module_notebook(), divided, "tensor")


@pytest.mark.long
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    killed.check_resumed(new_notebook, tmp_path, engines)
