"""Cells on pods of Kubernetes, for which a `kubectl` stands in that runs them on hosts of the lab."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.hosts.conftest import ROOT
from tests.hosts.test_several_hosts import SETUP, SHORT, TRAIN, assert_same, hosts_of, trained, waiting_for

ENDLESS = TRAIN.format(epochs=1000, pause=0.1)
POD = "spec:\n  template:\n    spec:\n      containers:\n      - name: agent\n        image: {}\n"


class Kubernetes:
    """The stand-in in the notebook's path, with the nodes `nodes`."""

    def __init__(self, lab, notebook, nodes):
        self._lab, self._notebook, self._nodes = lab, notebook, nodes
        self.state = lab.folder / "kubernetes"
        (self.state / "bin").mkdir(parents=True)
        program = shutil.copy(Path(__file__).with_name("stand_in_kubectl.py"), self.state)
        given = f"STAND_IN='{self.state}' STAND_IN_PACKAGES='{ROOT}' STAND_IN_NODES='{' '.join(node.name for node in nodes)}'"
        self.command = self.state / "bin/kubectl"
        self.command.write_text(f'#!/bin/sh\n{given} exec {sys.executable} {program} "$@"\n')
        self.command.chmod(0o755)
        notebook.run(f"import os; path = os.environ['PATH']; os.environ['PATH'] = '{self.state}/bin:' + path")
        notebook.run(f"open('pod.yaml', 'w').write({POD.format('registry/train:1')!r})")

    def names(self, kind):
        return sorted(path.name.split(".")[1] for path in self.state.glob(f"{kind}.*.json"))

    def delete(self, what):
        self._lab[0].run([self.command, "delete", what])

    def is_gone(self):
        return not list(self.state.glob("*.json")) and not any(node.processes() for node in self._nodes)

    def close(self):
        self._notebook.run("%distribute stop\nos.environ['PATH'] = path")


@pytest.fixture(scope="module")
def kubernetes(lab, notebook):
    found = Kubernetes(lab, notebook, [lab[1], lab[2]])
    yield found
    found.close()


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to."""
    notebook.run(SETUP + SHORT)
    return trained(notebook)


ASKED = "--launcher kubernetes --nodes 2 -n 2 --launcher-config pod.yaml"


def told(cell, pattern):
    return re.search(pattern, str(cell.contents("update_display_data")))


def test_a_job_waits_with_its_reason_trains_in_two_pods_and_its_deletion_is_told(notebook, kubernetes, expected):
    reason = "0/2 nodes are available: 2 Insufficient cpu."
    (kubernetes.state / "unschedulable").write_text(reason)
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute {ASKED}\n{SHORT}")
    notebook.wait(lambda: told(cell, rf"is PENDING \(Unschedulable: {re.escape(reason)}\)"), "the reason", cell)
    (kubernetes.state / "unschedulable").unlink()
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    (job,) = kubernetes.names("job")
    assert hosts_of(notebook) == [f"{job}-0", f"{job}-1"]
    assert_same(notebook, expected)
    cell = notebook.start(f"%%distribute\n{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 0")
    kubernetes.delete(f"job/{job}")
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert f"its job {job} was deleted" in cell.error[1]
    notebook.run("%distribute stop")
    waiting_for(kubernetes.is_gone)


@pytest.mark.long
def test_a_pod_that_is_evicted_is_told_and_the_run_goes_on_in_the_other(notebook, kubernetes):
    notebook.run(SETUP + TRAIN.format(epochs=10, pause=0))
    wanted = trained(notebook)
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute {ASKED}\n{TRAIN.format(epochs=10, pause=0.1)}")
    notebook.wait_for_stdout(cell, "epoch 1")
    (job,) = kubernetes.names("job")
    (kubernetes.state / "evict").write_text("1")
    try:
        notebook.finish(cell)
    finally:
        (kubernetes.state / "evict").unlink()
    assert cell.ok, cell.traceback
    assert any(re.search(rf"Lost rank 1 .*its pod {job}-1-\w+ was evicted from its node", notice) for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == [f"{job}-0", f"{job}-0"]
    assert_same(notebook, wanted)
    notebook.run("%distribute stop")
    waiting_for(kubernetes.is_gone)


@pytest.mark.long
def test_pods_out_of_time_end_the_cell_with_that(notebook, kubernetes):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute {ASKED} --time 0:00:30\n{ENDLESS}")
    notebook.finish(cell)
    assert "is out of time: its limit was 0:00:30 (`--time`)" in cell.error[1]
    notebook.run("%distribute stop")
    waiting_for(kubernetes.is_gone)


@pytest.mark.long
def test_an_image_that_cannot_be_had_is_told_and_an_interrupt_deletes_the_job(notebook, kubernetes):
    notebook.run(f"open('no-image.yaml', 'w').write({POD.format('nowhere/train:1')!r})")
    cell = notebook.start("%distribute start --launcher kubernetes -n 1 --launcher-config no-image.yaml")
    notebook.wait(lambda: told(cell, 'is PENDING .ImagePullBackOff: Back-off pulling image "nowhere/train:1"'), "the reason", cell)
    notebook.interrupt()
    notebook.finish(cell)
    assert not cell.ok
    waiting_for(kubernetes.is_gone)


def test_what_cannot_run_is_said_in_one_sentence(notebook, kubernetes):
    cell = notebook.fail(f"%distribute start {ASKED} --remote-python /nowhere/python")
    assert "there is no /nowhere/python: use `--remote-python PATH` to name the Python there" in cell.error[1]
    waiting_for(kubernetes.is_gone)
    notebook.run(f"open('forbidden.yaml', 'w').write('metadata: {{namespace: forbidden}}\\n' + {POD.format('registry/train:1')!r})")
    cell = notebook.fail("%distribute start --launcher kubernetes --launcher-config forbidden.yaml")
    assert 'jobs.batch is forbidden: User "me" cannot create resource "jobs"' in cell.error[1]
    assert kubernetes.is_gone()
