"""With `--elastic` a host that was lost and can be reached again has its ranks back, to the same results; one that is not fit has none."""

from __future__ import annotations

import re
import time

import pytest

from tests.hosts.conftest import opened
from tests.hosts.test_refused_hosts import script
from tests.hosts.test_several_hosts import SHORT, TRAIN, assert_nothing_left, assert_same, hosts_of, trained, waiting_for
from tests.hosts.test_zero1_on_hosts import WIDE
from tests.notebook.kernel import SESSION

pytestmark = [pytest.mark.long, pytest.mark.timeout(360)]

PACED = TRAIN.format(epochs=20, pause='0.8 if os.path.exists("/root/slow") else 0')
"""Trains slowly until every host is told otherwise: whatever is waited for happens meanwhile."""


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to, in few epochs and in many."""
    notebook.run(WIDE + SHORT)
    short = trained(notebook)
    notebook.run(WIDE + PACED)
    return short, trained(notebook)


@pytest.fixture
def slowed(lab):
    """Return a function that begins the cell in a notebook, and one that lets it be fast."""

    def begin(notebook, options):
        for host in lab.up:
            host.run(["touch", "/root/slow"])
        notebook.run(WIDE)
        cell = notebook.start(f"%%distribute {options}\n{PACED}")
        notebook.wait_for_stdout(cell, "epoch 0")
        return cell

    def release():
        for host in lab.up:
            host.run(["rm", "-f", "/root/slow"])

    yield begin, release
    if not lab[2].is_up:
        lab[2].switch_on()
    lab[2].plug()
    release()


def noticed(notebook, cell, words):
    began = time.monotonic()
    notebook.wait(lambda: words in " ".join(cell.notices) or not cell.running, words, cell)
    assert words in " ".join(cell.notices), (cell.notices, cell.contents("error"))
    print(f"after {time.monotonic() - began:.1f} s: {words}")


@pytest.mark.parametrize(
    ("hosts", "options", "then"),
    [
        ("h1:1,h2:1", "--elastic 1:2", ["h1", "h2"]),
        ("h2:1,h1:1", "--elastic 1:2 --strategy zero3", ["h1", "h2"]),  # rank 0's, which another one is then
        ("h1:1,h2:2", "--elastic 1:3 --strategy zero1", ["h1", "h2", "h2"]),
    ],
)
def test_a_host_that_is_switched_off_and_on_again_is_taken_back(notebook, lab, expected, slowed, hosts, options, then):
    begin, release = slowed
    notebook.run("%distribute stop")
    cell = begin(notebook, f"--hosts {hosts} {options}")
    lab[2].lose()
    noticed(notebook, cell, "on the 1 engine of the other hosts")
    lab[2].switch_on()
    noticed(notebook, cell, f"with {len(then)} engines.")
    release()
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    told = " | ".join(cell.notices)
    assert re.search(r"Lost rank.*\| The host h2 is back: \d engines? to start there\. \| .* up: resuming from step \d+", told), told
    assert hosts_of(notebook) == then
    assert_same(notebook, expected[1])
    assert notebook.value(f"{SESSION}.get().cluster.lost_hosts") == []
    pids = notebook.engines()
    notebook.run(WIDE)
    notebook.run(f"%%distribute --hosts {hosts} {options}\n{SHORT}")
    assert notebook.engines() == pids
    assert_same(notebook, expected[0])


def test_a_host_whose_cable_was_out_is_taken_back_when_what_ran_there_has_ended(notebook, lab, expected, slowed):
    begin, release = slowed
    notebook.run("%distribute stop")
    cell = begin(notebook, "--hosts h1:1,h2:1 --elastic 1:2")
    lab[2].unplug()
    noticed(notebook, cell, "on the 1 engine of the other hosts")
    lab[2].plug()
    noticed(notebook, cell, "with 2 engines.")
    release()
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert_same(notebook, expected[1])


def test_a_host_that_comes_back_with_another_torch_is_refused_once_and_the_run_goes_on(notebook, lab, expected, slowed):
    begin, release = slowed
    metadata = lab.folder / "returned/torch-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    python = script(lab, "python-returned", f"[ -e /root/other ] && export PYTHONPATH={metadata.parent}:$PYTHONPATH")
    notebook.run("%distribute stop")
    cell = begin(notebook, f"--hosts h1:1,h2:1 --elastic 1:2 --remote-python {python}")
    lab[2].lose()
    lab[2].switch_on()
    lab[2].run(["touch", "/root/other"])
    try:
        noticed(notebook, cell, "The host h2 can be reached again, but cannot be used: it has torch 1.0, and the notebook ")
        waiting_for(lambda: not lab[2].processes())
        waiting_for(lab[2].processes, limit=90)  # the next attempt, of which nothing is told
        waiting_for(lambda: not lab[2].processes())
        release()
        notebook.finish(cell)
    finally:
        lab[2].run(["rm", "/root/other"])
    assert cell.ok, cell.traceback
    assert [("cannot be used" in notice) for notice in cell.notices].count(True) == 1, cell.notices
    assert hosts_of(notebook) == ["h1"]
    assert_same(notebook, expected[1])


def test_a_host_that_never_comes_back_costs_nothing(notebook, lab, expected, slowed):
    """But a login that is tried from time to time, and ends with the cell."""
    begin, release = slowed
    notebook.run("%distribute stop")
    cell = begin(notebook, "--hosts h1:1,h2:1 --elastic 1:2")
    lab[2].lose()
    noticed(notebook, cell, "on the 1 engine of the other hosts")
    logins = lambda: lab[0].run(["sh", "-c", "ps ax -o args | grep '^ssh .* h2 ' | wc -l"]).strip()  # noqa: E731
    waiting_for(lambda: logins() == "1")
    release()
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert len(cell.notices) == 1, cell.notices
    assert hosts_of(notebook) == ["h1"]
    assert_same(notebook, expected[1])
    waiting_for(lambda: logins() == "0")


def test_nothing_is_left_on_a_host_that_is_back_when_the_kernel_is_killed(notebook, lab, slowed):
    begin, _ = slowed
    notebook.run("%distribute stop")
    before = lab[0].processes()
    with opened(lab, "/root/killed") as own:
        cell = begin(own, "--hosts h1:1,h2:1 --elastic 1:2")
        lab[2].lose()
        noticed(own, cell, "on the 1 engine of the other hosts")
        lab[2].switch_on()
        noticed(own, cell, "The host h2 is back")
        own.process_in_host.kill()
        waiting_for(lambda: not lab[1].processes() and not lab[2].processes() and lab[0].processes() == before, limit=10)
    assert_nothing_left(lab.up)
