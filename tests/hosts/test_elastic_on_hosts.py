"""With `--elastic` a host that is lost for good leaves its ranks to nobody: the cell goes on with fewer, to the same results."""

from __future__ import annotations

import re

import pytest

from tests.hosts.test_several_hosts import LONG, SETUP, SHORT, TRAIN, assert_same, hosts_of, trained

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to, in few epochs and in many."""
    notebook.run(SETUP + SHORT)
    short = trained(notebook)
    notebook.run(SETUP + TRAIN.format(epochs=10, pause=0))
    return short, trained(notebook)


@pytest.mark.parametrize(
    ("hosts", "options", "lost", "left"),
    [
        ("h1:1,h2:1", "--elastic 1:2", 1, ["h2"]),  # of rank 0
        ("h1:1,h2:2", "--elastic 1:3 --strategy zero1", 2, ["h1"]),
        ("h1:1,h2:1", "--elastic 2:2", 2, ["h1", "h1"]),  # not with fewer
    ],
)
def test_a_cell_goes_on_with_the_other_hosts_and_so_does_the_next(notebook, lab, expected, hosts, options, lost, left):
    notebook.run("%distribute stop")
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --hosts {hosts} {options}\n{LONG}")
    notebook.wait_for_stdout(cell, "epoch 2")
    lab[lost].lose()  # and not only its agent, which would be started again
    try:
        notebook.finish(cell)
        check_that_it_went_on(notebook, cell, expected, lost, left)
    finally:
        notebook.run("%distribute stop")
        lab[lost].switch_on()


def check_that_it_went_on(notebook, cell, expected, lost, left):
    assert cell.ok, cell.traceback
    on = " on the 1 engine of the other hosts" if len(left) == 1 else " with a new engine"
    assert any(re.search(rf"Lost ranks? .*the host h{lost} is lost.*{on}", notice) for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == left
    assert_same(notebook, expected[1])
    notebook.run(SETUP)
    notebook.run(f"%%distribute\n{SHORT}")
    assert hosts_of(notebook) == left
    assert_same(notebook, expected[0])


def test_more_engines_than_the_hosts_have_are_refused(notebook):
    cell = notebook.fail("%%distribute --hosts h1:1,h2:1 --elastic 1:4\n1")
    assert "--elastic 1:4: the hosts have 2 engines; write --elastic 1:2." in cell.error[1]
