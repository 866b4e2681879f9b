"""Cells on an ipyparallel cluster that ``ipcluster`` has started on this machine, and that is left as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import ipyparallel
import psutil
import pytest

from tests.conftest import one_of
from tests.notebook.conftest import IMPORTS

SETUP = """
import os
torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(24, 6), torch.randn(24, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
TRAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""
STATE = """(
    sorted(name for name in globals() if name[0] != "_"),
    sorted(thread.name for thread in __import__("threading").enumerate()),
    dict(__import__("os").environ),
)"""
OPTIONS = ("start", "-n", "2", "--profile=mine", "--ip=127.0.0.1")
UP = 90.0  # seconds for a controller and engines


@pytest.fixture(scope="module")
def notebook(module_notebook):
    notebook = module_notebook()
    notebook.run(IMPORTS)
    return notebook


@pytest.fixture(scope="module")
def ipcluster(notebook):
    """The process of a cluster with two engines, started by the profile `mine` of the notebook."""
    folder = notebook.folder / ".ipython"
    command = [sys.executable, "-m", "ipyparallel.cluster", *OPTIONS, f"--ipython-dir={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, cwd=notebook.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        stop(process)


@pytest.fixture(scope="module")
def connection_file(notebook, ipcluster):
    return notebook.folder / ".ipython/profile_mine/security/ipcontroller-client.json"


@pytest.fixture(scope="module")
def client(ipcluster, connection_file):
    """Somebody else's, whose engines they are."""
    end = time.monotonic() + UP
    while not connection_file.exists():
        assert time.monotonic() < end
        assert ipcluster.poll() is None
        time.sleep(0.1)
    with ipyparallel.Client(str(connection_file), timeout=10) as client:
        client.wait_for_engines(2, timeout=end - time.monotonic(), interactive=False)
        yield client


def stop(process):
    """End a cluster as Ctrl-C does, and wait until all of it has gone."""
    if process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        _, left = psutil.wait_procs(below, timeout=30)
        assert not left, left


def state_of(client):
    """What engines have: names, threads, environment, and the processes below them."""
    told = client[:].apply_sync(eval, STATE)
    pids = client[:].apply_sync(os.getpid)
    return told, [[child.pid for child in psutil.Process(pid).children(recursive=True)] for pid in pids], pids


@pytest.mark.parametrize("option", one_of(2, ["--profile mine", "--connect {file}"]))
def test_a_cell_runs_beside_its_engines_and_leaves_them_as_they_were(notebook, client, connection_file, option):
    notebook.run(SETUP + TRAIN)
    expected = notebook.value("model[0].weight.detach().clone()")
    before = state_of(client)
    notebook.run(SETUP)
    notebook.run(f"%%distribute {option.format(file=connection_file)}\n{TRAIN}theirs = os.environ.get('IPP_CONNECTION_INFO')")
    assert (notebook.value("model[0].weight.detach()") - expected).abs().max() < 1e-9
    assert notebook.value("theirs") is None
    assert len(notebook.engines()) == 2
    client[:].apply_sync(eval, "1")  # they are free meanwhile
    notebook.run("%distribute stop")
    assert state_of(client) == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--connect /nowhere.json", "--connect /nowhere.json: there is no such file"),
        ("--connect {folder}/empty.json", "empty.json is not a connection file of an ipyparallel cluster"),
        ("--connect {folder}/gone.json", "gone.json does not answer (Connection refused). The cluster may have ended: start it again."),
        ("--profile other", "--profile other: there is no such IPython profile in "),
        (
            "--profile mine --remote-python /nowhere/python",
            "there is no /nowhere/python: use `--remote-python PATH` to name the Python there.",
        ),
        ("--profile mine -n 3", "--engines 3: the cluster that you connect to says how many engines there are."),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(notebook, client, connection_file, line, said):
    (notebook.folder / "empty.json").write_text("{}")
    (notebook.folder / "gone.json").write_text(json.dumps({**json.loads(connection_file.read_text()), "registration": 1}))
    before, began = state_of(client), time.monotonic()
    cell = notebook.fail(f"%distribute start {line.format(folder=notebook.folder)}")
    assert time.monotonic() - began < 10
    assert said in cell.error[1]
    assert state_of(client) == before


WAIT = "[__import__('time').sleep(0.05) for _ in iter(lambda: __import__('os').path.exists(file), True)]"


def test_engines_that_compute_are_not_waited_for(notebook, client):
    done = notebook.folder / "done"
    busy = client[:].apply_async(eval, WAIT, {"file": str(done)})
    began = time.monotonic()
    cell = notebook.fail("%distribute start --profile mine")
    assert time.monotonic() - began < 12
    assert "do not answer. They may be busy: try again when they are idle." in cell.error[1]
    done.touch()
    busy.get(30)


@pytest.mark.long
def test_a_cluster_that_has_ended_is_said_so(notebook, client, ipcluster):
    stop(ipcluster)
    cell = notebook.fail("%distribute start --profile mine")
    assert "does not answer (Connection refused)" in cell.error[1] or "it has no running cluster" in cell.error[1]
