"""Cells on nodes that Slurm's real daemons give, and what is said when they do not, or take them away."""

from __future__ import annotations

import contextlib
import re

import pytest

from jupyter_dtrain.elastic.departure import LEAVING
from tests.hosts.conftest import opened
from tests.hosts.test_several_hosts import SETUP, SHORT, TRAIN, assert_same, hosts_of, trained, waiting_for
from tests.hosts.test_zero1_on_hosts import WIDE
from tests.hosts.virtual_slurm import VirtualSlurm, why_no_slurm

ENDLESS = TRAIN.format(epochs=1000, pause=0.1)

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())


@pytest.fixture(scope="module")
def slurm(lab, notebook):
    with VirtualSlurm(lab, [lab[1], lab[2]]) as slurm:
        yield slurm
        notebook.run("%distribute stop")


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to."""
    notebook.run(SETUP + SHORT)
    return trained(notebook)


def test_the_script_is_shown_and_nothing_runs(notebook, slurm):
    notebook.run("open('job.sh', 'w').write('#!/bin/sh\\n#SBATCH --mem=1G\\nmodule load cuda\\n')")
    shown = notebook.run(
        "%distribute start --launcher slurm -n 4 --nodes 2 --time 10:00 --partition main --launcher-config job.sh --show-script"
    ).stdout
    lines = shown.splitlines()
    for line in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=10:00", "--partition=main", "--mem=1G"):
        assert f"#SBATCH {line}" in lines
    assert "module load cuda" in lines
    assert "exec srun" in lines[-1]
    assert not slurm.jobs()


def test_a_cell_comes_to_the_same_on_two_nodes(notebook, slurm, expected):
    notebook.run(SETUP)
    notebook.run(f"%%distribute --launcher slurm -n 4 --nodes 2\n{SHORT}")
    assert [job.split()[1] for job in slurm.jobs()] == ["RUNNING"]
    assert hosts_of(notebook) == ["h1", "h1", "h2", "h2"]
    assert_same(notebook, expected)
    notebook.run(SETUP)
    notebook.run(f"%%distribute\n{SHORT}")  # on the engines that there are
    assert_same(notebook, expected)
    notebook.run("%distribute stop")
    waiting_for(lambda: not slurm.jobs())


def test_a_job_that_waits_says_why_and_is_cancelled_with_the_cell(notebook, slurm):
    slurm.run("scontrol", "update", "NodeName=h2", "State=DRAIN", "Reason=repair")
    try:
        cell = notebook.start("%distribute start --launcher slurm --nodes 2 -n 2")
        notebook.wait(lambda: slurm.jobs(), "the job", cell)
        reason = re.compile(r"job \d+ is PENDING \([^)]*(DRAINED|Unavail|Resources)")
        notebook.wait(lambda: reason.search(str(cell.contents("update_display_data"))), "its reason", cell)
        notebook.interrupt()
        notebook.finish(cell)
        assert not cell.ok
        waiting_for(lambda: not slurm.jobs())
    finally:
        slurm.run("scontrol", "update", "NodeName=h2", "State=RESUME")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--partition nowhere", "Invalid partition name specified"),
        ("--remote-python /nowhere/python", "has ended (FAILED, exit code 2:0): its output is in /root/jupyter-dtrain-"),
        ("--nodes 2 -n 3", "all nodes get the same number. Use a multiple of 2"),
        ("--hosts h1", "--hosts and --launcher slurm: omit one of them"),
    ],
)
def test_what_cannot_run_is_said_in_one_sentence(notebook, slurm, options, said):
    assert said in notebook.fail(f"%distribute start --launcher slurm {options}").error[1]
    waiting_for(lambda: not slurm.jobs())


def test_a_folder_that_nodes_do_not_have_is_told(notebook, slurm):
    notebook.run("import os\nos.makedirs('/root/here-alone', exist_ok=True)\n%cd /root/here-alone")
    try:
        cell = notebook.fail("%distribute start --launcher slurm -n 1")
        assert "cannot write its output into /root/here-alone on h1: change (`%cd`) to a folder that nodes have too" in cell.error[1]
    finally:
        notebook.run("%cd /root")


def test_where_the_jobs_log_is_seen_it_is_read(notebook, slurm, lab):
    notebook.run(f"%cd {lab.folder}")
    try:
        cell = notebook.fail("%distribute start --launcher slurm --remote-python /nowhere/python")
        assert "there is no /nowhere/python: use `--remote-python PATH` to name the Python there" in cell.error[1]
    finally:
        notebook.run("%cd /root")
    assert not list(lab.folder.glob("jupyter-dtrain-*"))


@pytest.mark.long
def test_inside_an_allocation_its_nodes_are_used(notebook, slurm, expected):
    """As ``salloc`` and batchspawner have it: the notebook knows the job that it is in."""
    number = slurm.run("sbatch", "--parsable", "-N2", "-n2", "--output=/dev/null", "--wrap=sleep 600").strip()
    waiting_for(lambda: [f"{number} RUNNING"] == slurm.jobs())
    notebook.run(f"os.environ |= {{'SLURM_JOB_ID': '{number}', 'SLURM_JOB_NUM_NODES': '2', 'SLURM_NTASKS': '2'}}")
    try:
        notebook.run(SETUP)
        notebook.run(f"%%distribute --launcher slurm -n 2\n{SHORT}\nleft = 'SLURM_NTASKS' in os.environ")
        assert hosts_of(notebook) == ["h1", "h2"]
        assert_same(notebook, expected)
        notebook.run("%distribute stop")
        assert slurm.jobs() == [f"{number} RUNNING"]  # it is not ours
    finally:
        notebook.run("for name in ('SLURM_JOB_ID', 'SLURM_JOB_NUM_NODES', 'SLURM_NTASKS'): os.environ.pop(name)")
        slurm.run("scancel", number)


@pytest.mark.long
def test_a_job_out_of_time_ends_the_cell_with_that(notebook, slurm):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --launcher slurm -n 2 --nodes 2 --time 1\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    for _ in range(10):
        if not cell.running:
            break
        with contextlib.suppress(TimeoutError, AssertionError):
            notebook.finish(cell)
    assert "is out of time: its limit was 00:01:00" in cell.error[1]


@pytest.mark.long
def test_a_job_that_is_cancelled_ends_the_cell_with_that(notebook, slurm):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --launcher slurm -n 2 --nodes 2\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    number = slurm.jobs()[0].split()[0]
    slurm.run("scancel", number)
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert f"its job {number} was cancelled" in cell.error[1]


@pytest.mark.long
def test_a_node_that_is_taken_away_is_told_and_the_run_goes_on(notebook, slurm, lab, expected):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --launcher slurm -n 2 --nodes 2\n{TRAIN.format(epochs=10, pause=0.1)}")
    notebook.wait_for_stdout(cell, "epoch 1")
    slurm.run("scontrol", "update", "NodeName=h2", "State=DOWN", "Reason=smoke")
    try:
        notebook.finish(cell)
        assert cell.ok, cell.traceback
        assert any(re.search(r"Lost rank 1 \(the host h2 is lost: .*DOWN.*smoke", notice) for notice in cell.notices), cell.notices
        assert hosts_of(notebook) == ["h1", "h1"]
    finally:
        slurm.run("scontrol", "update", "NodeName=h2", "State=RESUME")
        notebook.run("%distribute stop")


@pytest.mark.long
def test_a_detached_run_whose_job_is_cancelled_fails_with_that(notebook, slurm):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --detach --launcher slurm --nodes 2 -n 2\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    number = slurm.jobs()[0].split()[0]
    slurm.run("scancel", number)
    notebook.finish(cell)
    assert f"its job {number} was cancelled" in cell.error[1]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["auto", "zero3"])
def test_a_job_that_is_requeued_goes_on_by_itself(notebook, slurm, strategy):
    """A file of the user's lets Slurm do that. What its nodes had of the run comes to the notebook's host before they end."""
    notebook.run("%distribute stop")
    notebook.run(WIDE + TRAIN.format(epochs=10, pause=0))
    wanted = trained(notebook)
    notebook.run("open('requeue.sh', 'w').write('#SBATCH --requeue\\n')")
    notebook.run(WIDE)
    options = f"--launcher slurm -n 2 --nodes 2 --launcher-config requeue.sh --strategy {strategy}"
    cell = notebook.start(f"%%distribute {options} --checkpoint-every 1h\n{TRAIN.format(epochs=10, pause=0.2)}")
    notebook.wait_for_stdout(cell, "epoch 3")
    number = slurm.jobs()[0].split()[0]
    slurm.run("scontrol", "requeue", number)
    waiting_for(lambda: slurm.jobs() == [f"{number} PENDING"])
    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")  # and not in two minutes
    notebook.finish(cell)
    assert cell.ok, (cell.traceback, cell.notices)
    told = " ".join(cell.notices)
    assert LEAVING in told
    assert f"its job {number} was requeued" in told
    assert re.search(r"resuming from step \d+", told)
    assert slurm.jobs() == [f"{number} RUNNING"]
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, wanted)


def preempted(slurm):
    """Submit a job that takes both nodes from the one that runs, and return the numbers of both once it has them."""
    number = slurm.jobs()[0].split()[0]
    urgent = slurm.run("sbatch", "--parsable", "-purgent", "-N2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600").strip()
    waiting_for(lambda: f"{urgent} RUNNING" in slurm.jobs(), limit=60)
    return number, urgent


@pytest.mark.long
def test_a_job_that_is_preempted_ends_the_cell_with_that(notebook, slurm):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --launcher slurm -n 2 --nodes 2\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    number, urgent = preempted(slurm)
    try:
        notebook.finish(cell)
        assert cell.error[0] == "ClusterError"
        assert f"its job {number} was preempted by a job of higher priority" in cell.error[1]
    finally:
        slurm.run("scancel", urgent)


@pytest.mark.long
def test_a_job_that_is_preempted_and_requeued_goes_on_behind_the_other(notebook, slurm):
    notebook.run("%distribute stop")
    notebook.run(SETUP + TRAIN.format(epochs=10, pause=0))
    wanted = trained(notebook)
    notebook.run("open('requeue.sh', 'w').write('#SBATCH --requeue\\n')")
    notebook.run(SETUP)
    options = "--launcher slurm -n 2 --nodes 2 --launcher-config requeue.sh --checkpoint-every 1h"
    cell = notebook.start(f"%%distribute {options}\n{TRAIN.format(epochs=10, pause=0.2)}")
    notebook.wait_for_stdout(cell, "epoch 3")
    number, urgent = preempted(slurm)
    assert f"{number} PENDING" in slurm.jobs()
    slurm.run("scancel", urgent)
    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")  # and not in two minutes
    notebook.finish(cell)
    assert cell.ok, (cell.traceback, cell.notices)
    told = " ".join(cell.notices)
    assert LEAVING in told
    assert f"its job {number} was requeued" in told
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, wanted)


@pytest.mark.long
def test_a_detached_run_has_a_job_of_its_own_and_ends_it(notebook, slurm, lab, expected):
    """The process of the run has asked for it: it outlives the kernel, and is over with the run."""
    notebook.run("%distribute stop")
    for node in (lab[1], lab[2]):
        node.run(["mkdir", "/root/detached-job"])  # where the job's output goes
    with opened(lab, "/root/detached-job") as first, opened(lab, "/root/detached-job") as second:
        first.run(SETUP)
        cell = first.start(f"%%distribute --detach --name far --launcher slurm --nodes 2 -n 2\n{TRAIN.format(epochs=2, pause=0.5)}")
        first.wait_for_stdout(cell, "epoch 0")
        (job,) = slurm.jobs()
        first.process_in_host.kill()
        cell = second.start("%distribute attach far")
        second.finish(cell)
        assert cell.ok, cell.traceback
        assert_same(second, expected)
        assert job.split()[1] == "RUNNING"
        waiting_for(lambda: not slurm.jobs())
