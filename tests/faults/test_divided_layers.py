"""``--strategy tensor``: each engine has columns of layers, of their gradients and of moments, and none of it is lost with one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.conftest import one_of
from tests.faults.disturbed import ROUNDED, Disturbed, Killed
from tests.notebook.kernel import difference


@pytest.fixture(scope="module")
def divided(module_notebook):
    """Return a notebook whose cell comes to the same bits each time under this strategy: layers are added up in its own order."""
    return Disturbed(module_notebook(), 2, options="--strategy tensor")


def test_the_cell_comes_to_what_it_comes_to_with_all_of_it_on_each_engine(divided, two):
    divided.go()
    two.go()
    assert difference(divided.notebook.value(ROUNDED), two.notebook.value(ROUNDED)) is None


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


@pytest.fixture(scope="module")
def killed(module_notebook, divided: Disturbed) -> Killed:
    return Killed.behind_a_checkpoint(module_notebook(), divided, "tensor")


@pytest.mark.long
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    killed.check_resumed(new_notebook, tmp_path, engines)
