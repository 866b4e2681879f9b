"""Checkpoints of runs on several hosts are written on the notebook's, and outlive all the others."""

from __future__ import annotations

import pytest

from tests.hosts.test_several_hosts import SETUP, TRAIN, assert_same, hosts_of, trained
from tests.hosts.virtual_hosts import VirtualHost
from tests.notebook.kernel import SESSION

LONG = TRAIN.format(epochs=10, pause=0.1)
CHECKPOINTS = f"[c.step for c in CheckpointFolder(max({SESSION}.get().runs_folder.glob('*/checkpoints')).parent).newest_first()]"


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to."""
    notebook.run("import os\nfrom pathlib import Path\nfrom jupyter_dtrain.checkpoint.folder import CheckpointFolder")
    notebook.run(SETUP + TRAIN.format(epochs=10, pause=0))
    return trained(notebook)


def end_agents(*hosts: VirtualHost) -> None:
    for host in hosts:
        host.run(["pkill", "-9", "-f", "host_agent"])


@pytest.mark.long
def test_a_run_goes_on_from_disk_on_more_hosts_when_all_of_its_were_lost(notebook, lab, expected):
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --hosts h1:1,h2:1 --checkpoint-every 5\n{LONG}")
    notebook.wait_for_stdout(cell, "epoch 3")
    end_agents(lab[1], lab[2])
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    steps = notebook.value(CHECKPOINTS)
    assert all(step % 5 == 0 for step in steps)
    assert max(steps) >= 15

    resumed = notebook.start("%distribute resume --hosts h3:1,h1:1,h2:1")
    notebook.wait_for_stdout(resumed, "epoch 6")
    end_agents(lab[3])  # and it lives on as any other run does
    notebook.finish(resumed)
    assert resumed.ok, resumed.traceback
    told = "".join(resumed.notices)
    assert "resuming from step" in told
    assert "lines that it wrote after this checkpoint are not removed" in told
    assert sorted(set(hosts_of(notebook))) == ["h1", "h2"]
    assert_same(notebook, expected)


@pytest.mark.long
def test_a_run_of_hosts_goes_on_here(notebook, lab, expected):
    """And its best is kept as well, and the notebook's environment, of which hosts have their own."""
    notebook.run(SETUP)
    environment = notebook.value("dict(os.environ)")
    cell = notebook.start(f"%%distribute --hosts h1:2,h2:1 --checkpoint-every 5 --best loss\n{LONG}")
    notebook.wait_for_stdout(cell, "epoch 2")
    end_agents(lab[1], lab[2])
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert max(notebook.value(CHECKPOINTS)) >= 10
    notebook.run("%distribute stop")
    notebook.run("%distribute resume --engines 2 --launcher local")
    assert hosts_of(notebook) == ["h0", "h0"]
    assert_same(notebook, expected)
    assert notebook.value("dict(os.environ)") == environment
    notebook.run("%distribute stop")
