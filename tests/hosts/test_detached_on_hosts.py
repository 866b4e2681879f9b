"""A run with ``--detach`` on other hosts goes on without its kernel, for another to take, and leaves nothing there at its end."""

from __future__ import annotations

import json

import pytest

from tests.hosts.conftest import opened
from tests.hosts.test_several_hosts import SETUP, TRAIN, assert_nothing_left, assert_same, hosts_of, steps_logged, trained, waiting_for

FOLDER = "/root/detached"


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to."""
    notebook.run(SETUP + TRAIN.format(epochs=10, pause=0))
    found = trained(notebook)
    notebook.run("%distribute stop")
    return found


def begin(notebook, lab, *, epochs=10):
    """Begin a run on the hosts of the notebook's cluster, and kill its kernel when it is through with its first epoch."""
    for host in lab.up:
        host.run(["rm", "-f", "/root/log.txt"])
    notebook.run(SETUP)
    notebook.run("%distribute start --hosts h1:1,h2:1")
    cell = notebook.start(f"%%distribute --detach --name far\n{TRAIN.format(epochs=epochs, pause=0.2)}")
    notebook.wait_for_stdout(cell, "epoch 0")
    notebook.process_in_host.kill()


def host_of_run(lab):
    """Return the pid, there, of the process that has the newest run, if it runs still."""
    files = (lab[0].state / "root/detached/dtrain-runs").glob("*/host.json")
    return next((json.loads(file.read_text())["pid"] for file in files), None)


def nothing_is_left(lab):
    waiting_for(lambda: not lab[1].processes() and not lab[2].processes())
    assert_nothing_left(lab.up[1:3])


@pytest.mark.long
def test_the_kernel_is_killed_and_another_takes_the_results(lab, expected):
    with opened(lab, FOLDER) as first, opened(lab, FOLDER) as second:
        begin(first, lab)
        before = max(steps_logged(lab[1]))
        waiting_for(lambda: max(steps_logged(lab[1])) > before + 3)
        assert "is still running detached" in second.run("%distribute status").stdout
        cell = second.start("%distribute attach far")
        second.wait_for_stdout(cell, "epoch 2")
        lab[2].run(["pkill", "-9", "-f", "host_agent"])  # it lives on as any other run does
        second.finish(cell)
        assert cell.ok, cell.traceback
        assert any("the host h2 is lost" in notice for notice in cell.notices), cell.notices
        assert_same(second, expected)
        assert second.value("where") == "h1"
    assert steps_logged(lab[1]) == list(range(1, 61))
    nothing_is_left(lab)


@pytest.mark.long
def test_it_is_stopped_on_all_hosts_by_another_kernel_and_ends_with_its_process(lab, expected):
    with opened(lab, FOLDER) as first, opened(lab, FOLDER) as second:
        begin(first, lab, epochs=1000)
        cell = second.start("%distribute attach far")
        second.wait_for_stdout(cell, "epoch 1")
        second.interrupt()
        second.finish(cell)
        assert not cell.ok
        losses = second.value("losses")
        assert len(losses) >= 12
        assert losses[:60] == pytest.approx(expected[1][: len(losses)], abs=1e-9)
        nothing_is_left(lab)
        begin(second, lab, epochs=1000)
    assert lab[1].processes() and lab[2].processes()
    lab[0].run(["kill", "-9", host_of_run(lab)])
    nothing_is_left(lab)


@pytest.mark.long
def test_hosts_that_cannot_be_reached_are_told_and_the_next_cell_is_where_the_engines_were(notebook):
    cell = notebook.fail("%%distribute --detach --hosts h1:1,h99:1\n1 + 1")
    assert "h99: the host name cannot be resolved" in cell.error[1]
    notebook.run(SETUP)
    notebook.run("%distribute start --hosts h1:1,h2:1")
    notebook.run(f"%%distribute --detach\n{TRAIN.format(epochs=1, pause=0)}")
    assert notebook.value("where") == "h1"
    notebook.run("%%distribute --replicate\n2")
    assert hosts_of(notebook) == ["h1", "h2"]
