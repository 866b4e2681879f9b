"""``--strategy zero1``: each engine has a part of what the optimizer keeps, and none of it is lost with one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.conftest import one_of
from tests.faults.disturbed import (
    ROUNDED,
    STATE,
    Disturbed,
    copy_folder,
    kill_behind_a_checkpoint,
    resume_killed,
)
from tests.faults.test_elastic import no_new_engines
from tests.faults.test_kills import LATE, ON_TIME
from tests.notebook.kernel import difference


@pytest.mark.parametrize("rank", one_of(2, [1, 0]))
def test_an_engine_is_killed(two, rank):
    """What the cell comes to is what it comes to undisturbed, and with the state whole on each engine."""
    cell = two.start("--strategy zero1")
    two.wait_for_snapshot(cell)
    os.kill(two.pids[rank], signal.SIGKILL)
    assert f"Lost rank {rank} (its process has ended): resuming from step " in two.finish(cell)


@pytest.mark.long
def test_all_engines_are_killed_and_one_again(two):
    cell = two.start("--strategy zero1")
    two.wait_for_snapshot(cell)
    for pid in two.pids:
        os.kill(pid, signal.SIGKILL)
    assert "Lost ranks 0, 1 (their processes have ended): resuming from step " in two.finish(cell)


@pytest.mark.long
def test_where_the_cell_reads_each_engines_own_numbers(two):
    """What engines hold is not looked at for what they hold alike, and the parts are in the snapshot all the same."""
    options = "--strategy zero1 --semantics local"
    cell = two.notebook.finish(two.start(options))
    assert cell.ok, cell
    expected = two.notebook.value(STATE)
    cell = two.start(options)
    two.wait_for_snapshot(cell)
    os.kill(two.pids[1], signal.SIGKILL)
    two.notebook.finish(cell)
    assert cell.ok, cell
    assert "resuming from step " in cell.stderr
    assert two.notebook.value(STATE) == expected


@pytest.mark.long
def test_before_there_is_a_snapshot(two):
    cell = two.start("--strategy zero1")
    two.wait_for_step(1, cell)
    os.kill(two.pids[1], signal.SIGKILL)
    assert "resuming from " in two.finish(cell)


@pytest.mark.long
def test_one_of_three(three):
    cell = three.start("--strategy zero1")
    three.wait_for_snapshot(cell)
    os.kill(three.pids[2], signal.SIGKILL)
    assert "Lost rank 2 (its process has ended): resuming from step " in three.finish(cell)


def test_interrupted_while_another_engine_starts(two):
    """The engine that is gone had a part of the optimizer, so the notebook has what the snapshot has: weights and moments of one step."""
    notebook = two.notebook
    notebook.run("%distribute start -n 2 --device cpu")
    with notebook.changed(LATE, ON_TIME):
        cell = two.start("--strategy zero1")
        two.wait_for_snapshot(cell)
        os.kill(two.pids[1], signal.SIGKILL)
        notebook.wait(lambda: "others are late" in str(cell.messages) or not cell.running, "the start of another", cell)
        notebook.interrupt()
        notebook.finish(cell)
    assert cell.error[0] == "KeyboardInterrupt"
    (step,) = map(int, re.findall(r"has the state of step (\d+)", cell.traceback))
    used, expected = notebook.value("used"), two.expected[4]
    assert used == expected[: len(used)]
    assert notebook.value("{int(kept['step']) for kept in optimizer.state_dict()['state'].values()}") == {step}
    assert f"(`--strategy zero1`): all state is that of step {step}." in cell.stderr


@pytest.mark.long
def test_the_parts_are_divided_anew_among_fewer_engines_and_among_more(three):
    with three.slow_until_all() as expected:
        cell = three.start("--strategy zero1 --elastic 2:3")
        with no_new_engines(three):
            three.wait_for_snapshot(cell)
            three.go_on_with_fewer(cell, [1], left=2)
        three.finish_with_all(cell)
    assert cell.ok, cell
    assert difference(three.notebook.value(ROUNDED), expected) is None


@pytest.fixture(scope="module")
def killed(module_notebook, two: Disturbed) -> tuple[Path, object]:
    """Return the folder of a notebook whose kernel was killed in the midst of a cell, and what that is to come to."""
    folder = kill_behind_a_checkpoint(module_notebook(), "zero1")
    return folder, two.expected


@pytest.mark.long
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    folder, expected = killed
    copy_folder(folder, tmp_path)
    notebook = new_notebook(tmp_path)
    resume_killed(notebook, engines)
    found = notebook.value(STATE)
    if engines == 2:
        assert found == expected
    steps = notebook.value("[kept['step'].item() for kept in optimizer.state_dict()['state'].values()]")
    assert steps == [150.0] * len(expected[1])
