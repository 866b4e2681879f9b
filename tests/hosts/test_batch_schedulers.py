"""Cells in jobs of PBS, LSF and HTCondor, for which commands stand in, and of real Grid Engine; and on hosts of real Open MPI's."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import one_of
from tests.hosts.test_several_hosts import SETUP, SHORT, TRAIN, assert_same, hosts_of, trained, waiting_for
from tests.hosts.virtual_sge import VirtualSge, why_no_sge

ENDLESS = TRAIN.format(epochs=1000, pause=0.1)
WORD = {"pbs": "QUEUED", "lsf": "PEND", "htcondor": "IDLE"}
HOLD = {"pbs": ("qhold", "held by its owner; `qrls"), "lsf": ("bstop", "held; `bresume"), "htcondor": ("condor_hold", "`condor_release")}
ENDS = {
    "pbs": (["qdel"], "was cancelled"),
    "lsf": (["end", "preempted"], "was preempted by a job of higher priority"),
    "htcondor": (["end", "out of time"], r"is out of time: its limit was 2:00:00 \(`--time`\)"),
}
COMMANDS = (
    *("qsub", "qstat", "qdel", "qhold", "qrls", "pbsdsh", "bsub", "bjobs", "bkill", "bstop", "bresume", "blaunch"),
    *("end", "condor_submit", "condor_q", "condor_history", "condor_rm", "condor_hold", "condor_release"),
)


class StandIns:
    """Commands of schedulers in the notebook's path, whose jobs run on `nodes`."""

    def __init__(self, lab, notebook, nodes):
        self._lab, self._notebook = lab, notebook
        self.state = lab.folder / "schedulers"
        for folder in ("bin", "home"):
            (self.state / folder).mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("stand_in.py"), self.state / "stand_in.py")  # nodes share this folder
        self.variables = {"STAND_IN": str(self.state), "STAND_IN_NODES": " ".join(node.name for node in nodes)}
        given = " ".join(f"{name}='{value}'" for name, value in self.variables.items())
        for command in COMMANDS:
            path = self.state / "bin" / command
            path.write_text(f'#!/bin/sh\n{given} exec {sys.executable} {self.state}/stand_in.py {command} "$@"\n')
            path.chmod(0o755)
        notebook.run(f"import os; path = os.environ['PATH']; os.environ['PATH'] = '{self.state}/bin:' + path")

    def run(self, command, *arguments):
        return self._lab[0].run([self.state / "bin" / command, *arguments])

    def drain(self, reason):
        (self.state / "drained").write_text(reason)

    def resume(self):
        (self.state / "drained").unlink()

    def newest(self):
        return str(max(int(file.stem) for file in self.state.glob("*.json")))

    def is_over(self, number):
        return json.loads((self.state / f"{number}.json").read_text())["phase"] == "over"

    def close(self):
        self._notebook.run("os.environ['PATH'] = path")


@pytest.fixture(scope="module")
def schedulers(lab, notebook):
    found = StandIns(lab, notebook, [lab[1], lab[2]])
    yield found
    found.close()


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to."""
    notebook.run(SETUP + SHORT)
    return trained(notebook)


@pytest.fixture(autouse=True)
def stopped(notebook):
    """No cluster is left for the next test."""
    yield
    notebook.run("%distribute stop")


def told(cell, pattern):
    return re.search(pattern, str(cell.contents("update_display_data")))


@pytest.mark.long  # Slurm and Kubernetes are tried each time, and of these how jobs are held and removed
@pytest.mark.parametrize("launcher", ENDS)
def test_a_job_waits_with_its_reason_trains_on_two_nodes_and_its_end_is_told(notebook, schedulers, expected, launcher):
    end, said = ENDS[launcher]
    schedulers.drain("Not enough free nodes, and all of them are asked for")
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --launcher {launcher} -n 2 --nodes 2 --time 2:00:00\n{SHORT}")
    reason = rf"job \S+ is {WORD[launcher]} \(.*Not enough free nodes, and all of them are asked for\)"
    notebook.wait(lambda: told(cell, reason), "the reason", cell)
    schedulers.resume()
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, expected)
    cell = notebook.start(f"%%distribute\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    number = schedulers.newest()
    schedulers.run(end[0], number, *end[1:])
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert re.search(rf"its job {number}\S* {said}", cell.error[1]), cell.error[1]


@pytest.mark.parametrize("launcher", one_of(3, WORD))
def test_a_job_that_is_held_says_so_and_is_removed_with_an_interrupt(notebook, schedulers, launcher):
    schedulers.drain("later")
    try:
        cell = notebook.start(f"%distribute start --launcher {launcher} -n 1")
        notebook.wait(lambda: told(cell, r"\(.*later\)"), "the job", cell)
        number = schedulers.newest()
        hold, says = HOLD[launcher]
        schedulers.run(hold, number)
        notebook.wait(lambda: told(cell, re.escape(says)), "what holds it", cell)
        notebook.interrupt()
        notebook.finish(cell)
        assert not cell.ok
        waiting_for(lambda: schedulers.is_over(number))
    finally:
        schedulers.resume()


def test_what_a_scheduler_refuses_or_cannot_start_is_said_in_one_sentence(notebook, schedulers):
    assert "PBS's qsub says: Unknown queue." in notebook.fail("%distribute start --launcher pbs --queue nowhere").error[1]
    cell = notebook.fail("%distribute start --launcher pbs --remote-python /nowhere/python")
    assert re.search("there is no /nowhere/python: use `--remote-python PATH`|has ended \\(exit status 127\\)", cell.error[1])
    waiting_for(lambda: schedulers.is_over(schedulers.newest()))


@pytest.fixture(scope="module")
def sge(lab, notebook):
    if reason := why_no_sge():
        pytest.skip(reason)
    with VirtualSge(lab, [lab[1], lab[2]]) as sge:
        notebook.run(f"import os; before = dict(os.environ); os.environ |= {sge.env} | {{'HOME': '{sge.state}', 'PATH': '/usr/bin:/bin'}}")
        notebook.run("open('sge.sh', 'w').write('#$ -pe two 2\\n')")
        yield sge
        notebook.run("%distribute stop")
        notebook.run("os.environ.clear(); os.environ.update(before)")


SGE = "--launcher sge --nodes 2 -n 2 --launcher-config sge.sh"


@pytest.mark.long
def test_real_grid_engine_trains_on_two_nodes_and_its_end_is_told(notebook, sge, expected):
    notebook.run(SETUP)
    notebook.run(f"%%distribute {SGE}\n{SHORT}")
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, expected)
    assert not list(Path(sge.state).glob(".jupyter-dtrain-*"))  # the key has been read
    cell = notebook.start(f"%%distribute\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    (job,) = sge.jobs()
    sge.run("qdel", job.split()[0])
    notebook.finish(cell)
    assert f"its job {job.split()[0]} was cancelled" in cell.error[1]


@pytest.mark.long
def test_real_grid_engine_says_why_a_job_waits(notebook, sge):
    sge.run("qmod", "-d", "all.q@h2")
    try:
        cell = notebook.start(f"%distribute start {SGE}")
        notebook.wait(lambda: told(cell, r"is qw \(.*all.q@h2.*disabled"), "the reason", cell)
        sge.run("qhold", sge.jobs()[0].split()[0])
        notebook.wait(lambda: told(cell, r"is hqw \(held; `qrls"), "the hold", cell)
        notebook.interrupt()
        notebook.finish(cell)
        waiting_for(lambda: not sge.jobs())
    finally:
        sge.run("qmod", "-e", "all.q@h2")


@pytest.mark.long
def test_real_grid_engine_ends_a_job_that_is_out_of_time(notebook, sge):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --launcher sge -n 1 --time 0:00:40\n{ENDLESS}")
    notebook.finish(cell)
    assert "is out of time: its limit was 0:00:40" in cell.error[1]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="there is no mpiexec (Debian's openmpi-bin)")
def test_real_open_mpi_starts_agents_and_a_lost_one_ends_no_other(notebook, lab, expected):
    notebook.run("import os; os.environ |= {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}")
    notebook.run(SETUP)
    notebook.run(f"%%distribute --launcher mpi --hosts h1:1,h2:1\n{SHORT}")
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, expected)
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute\n{TRAIN.format(epochs=10, pause=0.1)}")
    notebook.wait_for_stdout(cell, "epoch 1")
    lab[2].run(["pkill", "-9", "-f", "host_agent"])
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert hosts_of(notebook) == ["h1", "h1"]
    assert any("the host h2 is lost" in notice for notice in cell.notices), cell.notices
    notebook.run("%distribute stop")
    waiting_for(lambda: "mpiexec" not in lab[0].run(["ps", "-eo", "comm"]))
