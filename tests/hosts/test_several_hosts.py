"""A cell that is trained on engines of other hosts comes to what it comes to on one process, whatever happens to a host meanwhile."""

from __future__ import annotations

import re
import time
from functools import partial

import pytest

from jupyter_dtrain.engine.side_effects.followed_folders import MKDIR_TIMEOUT
from jupyter_dtrain.protocol import COMMAND_TARGET
from tests.conftest import one_of
from tests.hosts.conftest import opened
from tests.notebook.kernel import SESSION

SETUP = """
torch.manual_seed(1)
data = TensorDataset(torch.randn(48, 6), torch.randn(48, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
"""
STEP = """
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
TRAIN = f"""
import os, socket, time
for epoch in range({{epochs}}):
    for x, y in loader:{STEP}
        with open("log.txt", "a") as file:
            print(len(losses), file=file)
        time.sleep({{pause}})
    print("epoch", epoch, flush=True)
where = socket.gethostname()
"""
SHORT, LONG = TRAIN.format(epochs=2, pause=0), TRAIN.format(epochs=10, pause=0.1)
FOLDERS = """%%distribute
import jupyter_dtrain
os.makedirs("earlier/new/one")
os.mkdir("earlier/two")
(Path.cwd() / "runs" / "a").mkdir(parents=True)
Path("runs/a/log.txt").write_text("a")
try:
    os.mkdir("earlier")
except OSError as error:
    raised = type(error).__name__
with tempfile.TemporaryDirectory() as scratch:
    os.mkdir(f"{scratch}/deep")
    is_there = os.path.isdir(f"{scratch}/deep")
if not os.path.exists("kept"):
    os.mkdir("kept")
found = jupyter_dtrain.gather([raised, Path("runs/a/log.txt").read_text(), is_there, os.path.isdir(scratch), os.path.isdir("kept")])
"""
WEIGHTS = "[parameter.detach().clone() for parameter in model.parameters()]"


def trained(notebook):
    return notebook.value(WEIGHTS), notebook.value("losses")


def assert_same(notebook, expected):
    weights, losses = expected
    assert notebook.value("losses") == pytest.approx(losses, abs=1e-9)
    for found, wanted in zip(notebook.value(WEIGHTS), weights, strict=True):
        assert (found - wanted).abs().max() < 1e-9


def waiting_for(condition, limit=60):
    """Wait until `condition()`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit
        time.sleep(0.05)


def assert_nothing_left(hosts):
    """Look for folders of clusters, and tell of what is in them, whose they are and what runs there."""
    script = "hostname; date; ps ax; ls -laR /tmp/jup* /dev/shm/jup*; head -n 99 /tmp/jup*/*.log /tmp/jup*/log/* /tmp/jup*/owner; true"
    for host in hosts:
        assert "jupyter-dtrain-" not in host.run(["ls", "/dev/shm", "/tmp"]), host.run(["sh", "-c", script])


def steps_logged(host):
    return [int(line) for line in host.run(["cat", "/root/log.txt"]).split()]


def hosts_of(notebook):
    return notebook.value(f"[engine.host for engine in {SESSION}.telemetry.views.snapshot().cluster.engines]")


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to, in few epochs and in many."""
    notebook.run(SETUP + SHORT)
    short = trained(notebook)
    notebook.run(SETUP + TRAIN.format(epochs=10, pause=0))
    return short, trained(notebook)


def begin(notebook, lab, hosts):
    """Start the long cell on `hosts`, and return it when it has come to its third epoch, with the pids of the engines."""
    for host in lab.up:
        host.run(["rm", "-f", "/root/log.txt"])
    notebook.run(SETUP)
    notebook.run(f"%distribute start --hosts {hosts}")
    pids = notebook.engines()
    cell = notebook.start(f"%%distribute\n{LONG}")
    notebook.wait_for_stdout(cell, "epoch 2")
    return cell, pids


@pytest.fixture
def running(notebook, lab):
    """Return a function that begins the long cell on hosts."""
    return partial(begin, notebook, lab)


# What stops engines or loses hosts comes first: those that are started afterwards serve all other tests, and those of the next files.


def test_nothing_is_left_when_the_kernel_is_killed(notebook, lab):
    notebook.run("%distribute stop")
    before = lab[0].processes()
    with opened(lab, "/root/killed") as own:
        # Where the notebook's host has little shared memory, buffers lie in a folder of its own, on all hosts.
        own.run("from jupyter_dtrain.cluster import folders\nfolders._roomy_shared_memory = lambda: None")
        begin(own, lab, "h1:1,h2:1")
        own.process_in_host.kill()
        waiting_for(lambda: not lab[1].processes() and not lab[2].processes() and lab[0].processes() == before)
    assert_nothing_left(lab.up)


def test_a_host_that_is_cut_off_ends_its_engines_and_the_run_goes_on_elsewhere(notebook, lab, running, expected):
    cell, _ = running("h1:1,h2:1")
    printed = cell.stdout
    lab[2].unplug()
    try:
        # The host ends them by itself, before the notebook takes others for them.
        lost = lambda: [notice for notice in cell.notices if "Lost" in notice]  # noqa: E731
        notebook.wait(lambda: not lab[2].processes() or lost() or not cell.running, "the end of the engines", cell)
        assert not lost() and not lab[2].processes()
        began = time.monotonic()
        notebook.wait(lambda: len(cell.stdout) > len(printed) + 30 or not cell.running, "another epoch", cell)
        notebook.finish(cell)
        print(f"after the fence: {time.monotonic() - began:.1f} s")
    finally:
        lab[2].plug()
    assert cell.ok, cell.traceback
    assert any(re.search(r"Lost rank 1 \(the host h2 is lost: .* silent for 8 s", notice) for notice in cell.notices)
    assert hosts_of(notebook) == ["h1", "h1"]
    assert_same(notebook, expected[1])
    assert steps_logged(lab[1]) == list(range(1, 61))


def test_what_is_left_runs_the_next_cell(notebook, expected):
    notebook.run(SETUP)
    notebook.run(f"%%distribute\n{SHORT}")
    assert_same(notebook, expected[0])


@pytest.mark.parametrize("hosts", one_of(2, ["h1:2,h2:2", "h1:1,h2:1"]))
def test_a_cell_comes_to_the_same(notebook, expected, hosts):
    notebook.run(SETUP)
    notebook.run(f"%%distribute --hosts {hosts}\n{SHORT}")
    assert notebook.value("where") == "h1"
    assert_same(notebook, expected[0])


def test_the_engines_are_told_by_host(notebook):
    shown = notebook.run("%distribute status").stdout
    assert "h1" in shown
    assert "h2" in shown


def test_a_tensor_goes_to_each_host_once(notebook, lab):
    """Both engines of h2 have it from one copy, and a rerun sends nothing."""
    notebook.run("%distribute start --hosts h1:2,h2:2")
    notebook.run("big = torch.randn(2_000_000)\nsame = big.sum().item()")
    size, received = 16e6, []
    for _ in range(2):
        before = lab[2].bytes()[1]
        notebook.run("%%distribute --replicate\ntotal = big.sum().item()")
        received.append(lab[2].bytes()[1] - before)
        assert notebook.value("total") == pytest.approx(notebook.value("same"), abs=1e-9)
    assert size < received[0] < 1.02 * size
    assert received[1] < 1e5


def test_a_large_result_comes_home_once(notebook, lab):
    before = lab[0].bytes()[1]
    notebook.run("%%distribute --replicate\ndouble = big * 2")
    assert (notebook.value("double.sum().item()") - 2 * notebook.value("same")) == pytest.approx(0, abs=1e-9)
    assert lab[0].bytes()[1] - before < 1.03 * 16e6


def test_only_what_asks_for_a_key_listens_beyond_its_host(notebook, lab):
    """Engines listen for gloo at their host's own address; the rest is SSH's, the controller's and the store's."""
    notebook.run("%distribute start --hosts h1:2,h2:2")
    for host in lab.up[:3]:
        lines = [line.split() for line in host.run(["ss", "-Hltn"]).splitlines()]
        addresses = {words[3].rpartition(":")[0] for words in lines}
        assert addresses <= {"127.0.0.1", host.address}, addresses
    assert notebook.value(f"{SESSION}.get().cluster.client.curve_serverkey is not None")


@pytest.mark.long
def test_a_cable_that_is_out_for_a_moment_restarts_nothing_and_a_killed_engine_is_replaced_on_its_host(notebook, lab, running, expected):
    cell, pids = running("h1:1,h2:1")
    lab[2].unplug()
    time.sleep(3)
    lab[2].plug()
    notebook.wait_for_stdout(cell, "epoch 4")
    assert not any("Lost" in notice for notice in cell.notices)
    lab[2].run(["kill", "-9", pids[1]])
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert [notice for notice in cell.notices if "Lost rank 1 (its process has ended)" in notice]
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, expected[1])
    assert steps_logged(lab[1]) == list(range(1, 61))  # a file of rank 0's host: each step once


@pytest.mark.long
def test_an_interrupt_stops_all_hosts_after_a_step(notebook, running, expected):
    cell, pids = running("h1:1,h2:1")
    notebook.interrupt()
    notebook.finish(cell)
    assert not cell.ok
    losses = notebook.value("losses")
    assert 18 <= len(losses) < 60
    assert losses == pytest.approx(expected[1][1][: len(losses)], abs=1e-9)
    assert notebook.engines() == pids


@pytest.mark.long
@pytest.mark.parametrize("process", ["host_agent", "guard.py", "sshd: root"])
def test_a_host_whose_agent_ends_is_lost_at_once(notebook, lab, running, expected, process):
    cell, _ = running("h1:1,h2:1")
    lab[2].run(["pkill", "-9", "-f", process])
    notebook.wait(lambda: cell.notices, "the loss", cell)
    assert "Lost rank 1 (the host h2 is lost: its agent has ended" in cell.notices[0]
    waiting_for(lambda: not lab[2].processes())
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert_same(notebook, expected[1])
    assert_nothing_left([lab[2]])


@pytest.mark.long
def test_without_its_controller_a_run_ends_with_an_error_and_the_next_cell_is_on_the_same_hosts(notebook, lab, running, expected):
    cell, _ = running("h1:1,h2:1")
    lab[0].run(["pkill", "-9", "-f", "controller_app"])
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert "the controller of the engines has ended" in cell.error[1]
    assert not lab[1].processes() + lab[2].processes()
    notebook.run(SETUP)
    notebook.run(f"%%distribute\n{SHORT}")
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, expected[0])


@pytest.mark.long
def test_a_notebook_that_is_held_loses_its_hosts_in_a_run_and_finds_them_again(notebook, lab, running, expected):
    cell, _ = running("h1:1,h2:1")
    notebook.process_in_host.suspend()
    waiting_for(lambda: not lab[1].processes() + lab[2].processes())
    notebook.process_in_host.resume()
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert "the host h1 is lost" in cell.error[1]
    notebook.run(SETUP)
    notebook.run(f"%%distribute\n{SHORT}")
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same(notebook, expected[0])


@pytest.mark.long
def test_the_sidebar_pauses_restarts_and_keeps_a_checkpoint(notebook, running, expected):
    commands = notebook.open_comm(COMMAND_TARGET)
    cell, pids = running("h1:1,h2:1")
    assert notebook.command(commands, "pause_run")["ok"]
    assert notebook.command(commands, "checkpoint_now")["ok"]
    time.sleep(1)
    printed = cell.stdout
    time.sleep(2)
    notebook.command(commands, "no_such_command")
    assert cell.stdout == printed
    assert notebook.command(commands, "resume_run")["ok"]
    assert notebook.command(commands, "restart_engine", rank=1)["ok"]
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert notebook.engines()[0] == pids[0]
    assert notebook.engines()[1] != pids[1]
    assert any("is on disk" in notice for notice in cell.notices)
    assert_same(notebook, expected[1])
    notebook.close_comm(commands)


@pytest.mark.long
def test_rank_0_may_be_on_the_notebooks_own_host(notebook, expected):
    notebook.run(SETUP)
    notebook.run("%distribute start --hosts localhost:1,h1:1")
    notebook.run(f"%%distribute\n{SHORT}")
    assert notebook.value("where") == "h0"
    assert_same(notebook, expected[0])


@pytest.mark.long
def test_folders_are_made_on_the_host_of_rank_0_though_the_other_has_not_the_notebooks_folder(notebook, lab):
    lab[0].run(["mkdir", "-p", "/root/apart/earlier", "/root/apart/kept"])
    notebook.run("import os, tempfile\nfrom pathlib import Path\nos.chdir('/root/apart')")
    try:
        notebook.run("%distribute start --hosts localhost:1,h1:1")
        notebook.run("%%distribute\nhere = os.getcwd()")
        began = time.monotonic()
        notebook.run(FOLDERS)
        assert time.monotonic() - began < MKDIR_TIMEOUT
    finally:
        notebook.run("os.chdir('/root')")
    assert notebook.value("found") == [["FileExistsError", "a", True, False, True]] * 2
    assert lab[0].run(["sh", "-c", "cd /root/apart; find earlier kept runs | sort"]).split() == [
        *("earlier", "earlier/new", "earlier/new/one", "earlier/two", "kept", "runs", "runs/a", "runs/a/log.txt")
    ]
    assert not {"apart", "earlier", "kept", "runs"}.intersection(lab[1].run(["ls", "/root"]).split())


@pytest.mark.long
def test_the_host_of_rank_0_is_switched_off(notebook, lab, running, expected):
    cell, _ = running("h3:1,h1:1")
    began = time.monotonic()
    lab[3].lose()
    notebook.wait(lambda: any("Lost" in notice for notice in cell.notices), "the loss", cell)
    notebook.wait_for_stdout(cell, "epoch 4")
    assert time.monotonic() - began < 60, "seconds, of which eight are waited for a host that is silent"
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert "the host h3 is lost, and with it the files that the cell has written there" in " ".join(cell.notices)
    assert notebook.value("where") == "h1"
    assert_same(notebook, expected[1])
