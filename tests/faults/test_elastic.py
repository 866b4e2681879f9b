"""``--elastic``: the run goes on with fewer engines while no other can come up, takes one back later, and comes to the same."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.disturbed import ROUNDED, Disturbed, NoNewEngines
from tests.notebook.kernel import SESSION, difference


def no_new_engines(run: Disturbed) -> NoNewEngines:
    """Also one that is in reserve since an earlier cell counts as new."""
    return NoNewEngines(run.processes["guard"], [*run.pids, *(run.processes[name] for name in ("template", "controller"))])


@pytest.mark.parametrize(
    ("engines", "killed", "controller"),
    [
        pytest.param("two", [0], False, marks=pytest.mark.long),
        ("two", [1], True),
        pytest.param("three", [1], False, marks=pytest.mark.long),
        pytest.param("three", [0, 2], False, marks=pytest.mark.long),
    ],
)
def test_fewer_engines_and_then_as_many_again(request, engines, killed, controller):
    run = request.getfixturevalue(engines)
    notebook, number = run.notebook, run.engines
    with run.slow_until_all() as expected:
        cell = run.start(f"--elastic 1:{number}")
        with no_new_engines(run):
            run.wait_for_snapshot(cell)
            run.go_on_with_fewer(cell, killed, left=run.engines - len(killed))
        if controller:  # the new cluster is as small as the one that was lost
            os.kill(run.processes["controller"], signal.SIGKILL)
        run.finish_with_all(cell)
    assert cell.ok, cell
    assert cell.stderr.count("A new engine is up: resuming from step ") == len(killed)
    assert difference(notebook.value(ROUNDED), expected) is None
    assert len(notebook.engines()) == notebook.value(f"{SESSION}.telemetry.views.snapshot().run.world_size") == number
    assert [line.split()[:2] for line in cell.stdout.splitlines()] == [["epoch", f"{epoch}:"] for epoch in range(6)]


@pytest.mark.long
def test_one_of_two_that_are_lost_is_replaced(three):
    """The engine in reserve takes a place, as the rank that it is then, and no other comes up."""
    notebook = three.notebook
    notebook.run("%distribute stop")  # engines that were killed here before are not those in reserve
    with three.slow_until_all() as expected:
        cell = three.start("--elastic 2:3")
        # The one in reserve has been since the cell before.
        reserve = [pid for name, pid in three.processes.items() if name.startswith("engine-") and pid not in three.pids]
        assert len(reserve) == 1
        three.wait_for_snapshot(cell)
        with NoNewEngines(three.processes["guard"], three.processes.values()):
            three.go_on_with_fewer(cell, [0, 2], left=2)
        three.finish_with_all(cell)
    assert cell.ok, cell
    assert difference(notebook.value(ROUNDED), expected) is None


@pytest.mark.long
def test_below_the_fewest_the_cell_ends_and_says_why(two):
    cell = two.start("--elastic 2:2")
    with no_new_engines(two):
        two.wait_for_snapshot(cell)
        os.kill(two.pids[1], signal.SIGKILL)
        two.notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    two.finish(two.start())


def test_ranges_that_are_none(two):
    for text, said in {
        "4": "as 2:4",
        "3:2": "give the minimum",
        "0:2": "give the minimum",
        "1:2 --engines 3": "leave out --engines",
    }.items():
        assert said in two.notebook.fail(f"%%distribute --elastic {text}\n1").error[1]
