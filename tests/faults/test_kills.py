"""Engines, controller and kernel killed at any moment of a cell: it ends with the same weights, to the last bit."""

from __future__ import annotations

import os
import re
import signal
import time

import psutil
import pytest

from tests.conftest import one_of
from tests.faults.disturbed import CELL, SETUP, STATE, STUCK, checkpoints, copy_folder, kill_kernel
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, difference
from tests.processes import find_processes

A_MINUTE = 60.0
"""Seconds that it would take at least until somebody's time is up: whoever is not waited for costs less, on a busy machine too."""


@pytest.mark.long
def test_undisturbed_it_comes_to_the_same_again(two):
    assert two.finish(two.start()).strip() == ""


@pytest.mark.long  # and `test_moments.py` each time
def test_both_engines_at_once(two):
    cell = two.start()
    two.wait_for_snapshot(cell)
    for pid in two.pids:
        os.kill(pid, signal.SIGKILL)
    assert "Lost ranks 0, 1 (their processes have ended): resuming from step " in two.finish(cell)


@pytest.mark.long
def test_one_after_the_other(two):
    cell = two.start()
    two.wait_for_step(60, cell)
    os.kill(two.pids[1], signal.SIGKILL)
    two.wait_for_step(100, cell)
    os.kill(two.pids[0], signal.SIGKILL)
    said = two.finish(cell)
    assert said.count("Lost rank") == 2


@pytest.mark.parametrize("rank", one_of(2, [0, 1]))
def test_an_engine_that_somebody_interrupts_is_replaced(two, rank):
    cell = two.start()
    two.wait_for_snapshot(cell)
    os.kill(two.pids[rank], signal.SIGINT)
    assert f"Lost rank {rank} (its process was interrupted by a signal, SIGINT): resuming from step " in two.finish(cell)


def test_an_engine_that_is_told_to_end(two):
    """It does between two tasks, so after the cell, or before its last answer has been sent: then the run goes on at once."""
    cell = two.start()
    two.wait_for_step(60, cell)
    began, told = time.monotonic(), psutil.Process(two.pids[1])
    os.kill(told.pid, signal.SIGTERM)
    two.finish(cell)
    assert time.monotonic() - began < A_MINUTE
    told.wait(A_MINUTE)
    # The kernel hears of it a moment later. Until then it would start others in the midst of the next test.
    gone = f"(lambda cluster: cluster is None or {told.pid} not in cluster.pids().values())({SESSION}.get().cluster)"
    two.notebook.wait(lambda: two.notebook.value(gone), "the kernel's notice of its end")


LATE = """
import threading
from jupyter_dtrain.cluster.startup import Arrival
of_engines, on_time = Arrival.of_engines, threading.Event()
def late(arrival, engine_ids):
    arrival.tell("others are late")
    # In short waits: Python hears of an interrupt that comes just before one when that ends.
    any(on_time.wait(0.1) for _ in range(600))
    of_engines(arrival, engine_ids)
Arrival.of_engines = late
"""
# What takes the place of the lost one in the background, after the cell, waits no longer either.
ON_TIME = "Arrival.of_engines = of_engines; on_time.set()"
IMPORTS_LATE = """
import threading
from jupyter_dtrain.cluster.startup import Arrival
of, on_time = Arrival.of, threading.Event()
def late(arrival, is_there, sentence):
    if sentence() == "the new engine imports torch":
        arrival.tell("others are late")
        any(on_time.wait(0.1) for _ in range(600))
    of(arrival, is_there, sentence)
Arrival.of = late
"""
IMPORTS_ON_TIME = "Arrival.of = of; on_time.set()"


LATE_AT = {"it registers": (LATE, ON_TIME), "it imports": (IMPORTS_LATE, IMPORTS_ON_TIME)}


@pytest.mark.long
@pytest.mark.parametrize(
    ("lost", "when"),
    [
        ("0", "it registers"),
        pytest.param("1", "it registers", marks=pytest.mark.long),
        pytest.param("1", "it imports", marks=pytest.mark.long),
        pytest.param("controller", "it registers", marks=pytest.mark.long),
    ],
)
def test_interrupted_while_another_engine_starts(two, lost, when):
    """What the ranks have come to is in the notebook: that of rank 0, or the snapshot."""
    notebook = two.notebook
    notebook.run("%distribute start -n 2 --device cpu")
    with notebook.changed(*LATE_AT[when]):
        cell = two.start()
        two.wait_for_snapshot(cell)
        os.kill(two.processes["controller"] if lost == "controller" else two.pids[int(lost)], signal.SIGKILL)
        notebook.wait(lambda: "others are late" in str(cell.messages) or not cell.running, "the start of another", cell)
        pressed = time.monotonic()
        notebook.interrupt()
        notebook.finish(cell)
        assert time.monotonic() - pressed < A_MINUTE - 10, "where the other one takes a minute"
    assert cell.error[0] == "KeyboardInterrupt"
    (step,) = map(int, re.findall(r"Stopped after step (\d+)" if lost == "1" else r"the state of step (\d+)", cell.traceback))
    assert step > 10
    used, expected = notebook.value("used"), two.expected[4]
    assert used == expected[: len(used)]
    assert len(used) in (step, step - 1)
    assert notebook.value("{int(state['step']) for state in optimizer.state_dict()['state'].values()}") == {step}
    # Whoever was to take a place when the interrupt came has it, and the sidebar knows: on GPUs it would compute on another one's.
    assert all(map(psutil.pid_exists, notebook.engines()))
    if lost != "controller":
        ranks = f"{SESSION}.get().cluster.view.apply_sync(lambda: __import__('os').environ['JUPYTER_DTRAIN_RANK'])"
        assert notebook.value(ranks) == ["0", "1"]
    two.finish(two.start())


def test_an_engine_that_is_stopped_and_not_dead(two):
    cell = two.start()
    two.wait_for_snapshot(cell)
    os.kill(two.pids[0], signal.SIGSTOP)
    assert f"Lost rank 0 ({STUCK}): resuming from step " in two.finish(cell)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_that_was_stopped_before_the_cell(two, rank):
    two.notebook.run("%distribute start -n 2 --device cpu")
    os.kill(two.notebook.engines()[rank], signal.SIGSTOP)
    cell, began = two.start(), time.monotonic()
    assert f"Lost rank {rank} ({STUCK}): resuming from the cell's beginning" in two.finish(cell)
    assert time.monotonic() - began < A_MINUTE, "where the controller takes a minute to find out"


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [1, 0]))
def test_an_engine_that_was_stopped_before_the_ranks_have_met(two, rank):
    two.notebook.run("%distribute stop")
    two.notebook.run("%distribute start -n 2 --device cpu")
    two.notebook.wait(lambda: two.notebook.value(f"{SESSION}.get().cluster.warm"), "torch on all engines")
    os.kill(two.notebook.engines()[rank], signal.SIGSTOP)
    began = time.monotonic()
    assert two.finish(two.start()).strip() == ""
    assert time.monotonic() - began < A_MINUTE, "where opening a place to meet takes a minute to fail"


AS_IT_WARMS_UP = """
from jupyter_dtrain.cluster.local import LocalCluster
warm_up = LocalCluster._warm_up
def stopped_and_warm_up(cluster, member):
    LocalCluster._warm_up = warm_up
    os.kill(cluster.pids()[member.name], 19)
    return warm_up(cluster, member)
LocalCluster._warm_up = stopped_and_warm_up
"""


@pytest.mark.long
def test_an_engine_that_was_stopped_before_it_has_imported_torch(two):
    """Neither the cell nor the one after it waits for what the engine that was stopped was asked."""
    two.notebook.run("%distribute stop")
    with two.notebook.changed(AS_IT_WARMS_UP, "LocalCluster._warm_up = warm_up"):
        two.notebook.run("%distribute start -n 2 --device cpu")
    for _ in range(2):
        began = time.monotonic()
        assert two.finish(two.start()).strip() == ""
        assert time.monotonic() - began < A_MINUTE, "where the controller takes a minute to find out"


@pytest.mark.long
def test_an_engine_in_reserve_that_is_stopped(two):
    """Another one takes the place of the engine that is lost."""
    two.notebook.run("%distribute stop")
    cell = two.start()
    guard, known = psutil.Process(two.processes["guard"]), {*two.processes.values()}
    reserve = lambda: [child for child in guard.children() if child.pid not in known]  # noqa: E731
    two.notebook.wait(lambda: reserve() or not cell.running, "an engine in reserve", cell)
    for process in reserve():
        process.suspend()
    two.wait_for_snapshot(cell)
    began = time.monotonic()
    os.kill(two.pids[0], signal.SIGKILL)
    assert "Lost rank 0 (its process has ended): resuming from step " in two.finish(cell)
    assert time.monotonic() - began < A_MINUTE, "where a new engine is waited for a minute"


AT_THE_RENDEZVOUS = """
from jupyter_dtrain.elastic.worker_group import WorkerGroup
rendezvous = WorkerGroup.rendezvous
def one_dies(group, task):
    WorkerGroup.rendezvous = rendezvous
    os.kill(group.cluster.pids()[{name!r}], 9)
    return rendezvous(group, task)
WorkerGroup.rendezvous = one_dies
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reason"),
    [("engine-0", "rank 0 (its process"), pytest.param("controller", "ranks 0, 1 (the controller of the engines", marks=pytest.mark.long)],
)
def test_just_when_the_ranks_are_to_meet(two, name, reason):
    two.notebook.run("%distribute stop")
    with two.notebook.changed(AT_THE_RENDEZVOUS.format(name=name), "WorkerGroup.rendezvous = rendezvous"):
        assert f"Lost {reason} has ended): resuming from the cell's beginning" in two.finish(two.start())


def wait_for_new_engines(two, cell):
    """Wait until the run that has lost all of its engines, which are no longer there, takes a step again."""
    two.notebook.wait(lambda: not any(map(psutil.pid_exists, two.pids)), "the end of the old engines", cell)
    two.wait_for_step((two.notebook.folder / "steps").stat().st_size + 1, cell)


def test_the_controller(two):
    """Another one takes its place, and no cluster: PyTorch, most of what a start takes, is there already."""
    two.notebook.run("%distribute stop")
    began = time.monotonic()
    two.notebook.run("%distribute start -n 2 --device cpu")
    start = time.monotonic() - began
    cell = two.start()
    two.wait_for_snapshot(cell)
    killed = time.monotonic()
    os.kill(two.processes["controller"], signal.SIGKILL)
    wait_for_new_engines(two, cell)
    recovery = time.monotonic() - killed
    assert "(the controller of the engines has ended): resuming from step " in two.finish(cell)
    kept = two.notebook.value(f"{SESSION}.get().cluster.pids()")
    assert [kept[name] for name in ("guard", "template")] == [two.processes[name] for name in ("guard", "template")]
    assert recovery < 2 * start


@pytest.mark.long
def test_the_controller_and_the_guard_while_another_controller_starts(two):
    """What was to be mended cannot be any more: a new cluster takes over."""
    cell = two.start()
    two.wait_for_snapshot(cell)
    os.kill(two.processes["controller"], signal.SIGKILL)
    two.notebook.wait(lambda: not any(map(psutil.pid_exists, two.pids)), "the end of the old engines", cell)
    os.kill(two.processes["guard"], signal.SIGKILL)
    assert "(the controller of the engines has ended): resuming from step " in two.finish(cell)
    assert not two.memory.exists()


@pytest.mark.long
def test_the_controller_twice(two):
    cell, guard = two.start(), psutil.Process(two.processes["guard"])
    for _ in range(2):
        two.wait_for_snapshot(cell)
        (controller,) = find_processes(guard.children(), "jupyter_dtrain.cluster.controller_app")
        controller.kill()
        wait_for_new_engines(two, cell)
    assert two.finish(cell).count("(the controller of the engines has ended): resuming from step ") == 2


GUARD = "(the process that watches over the engines has ended): resuming from step "


def test_the_guard(two):
    """What engines were forked from outlives it, and is the guard of another cluster: nobody imports PyTorch again."""
    two.notebook.run("%distribute stop")
    cell = two.start()
    two.wait_for_snapshot(cell)
    os.kill(two.processes["guard"], signal.SIGKILL)
    wait_for_new_engines(two, cell)
    assert GUARD in two.finish(cell)
    assert two.notebook.value(f"{SESSION}.get().cluster.pids()")["guard"] == two.processes["template"]
    assert not two.memory.exists()


@pytest.mark.long
def test_the_guard_twice(two):
    two.notebook.run("%distribute stop")
    cell, killed = two.start(), list[int]()
    two.wait_for_snapshot(cell)
    for _ in range(2):
        guard = psutil.Process(killed[-1] if killed else two.processes["guard"])
        # The oldest of those that look alike: engines are forked from it.
        killed.append(min(find_processes(guard.children(), "jupyter_dtrain.cluster.forkserver"), key=psutil.Process.create_time).pid)
        guard.kill()
        wait_for_new_engines(two, cell)
    assert two.finish(cell).count(GUARD) == 2
    assert two.notebook.value(f"{SESSION}.get().cluster.pids()")["guard"] == killed[-1]


@pytest.mark.long
def test_the_guard_and_the_template(two):
    two.notebook.run("%distribute stop")
    cell = two.start()
    two.wait_for_snapshot(cell)
    for name in ("template", "guard"):
        os.kill(two.processes[name], signal.SIGKILL)
    wait_for_new_engines(two, cell)
    assert GUARD in two.finish(cell)


@pytest.mark.long
def test_the_kernel_after_the_guard(new_notebook):
    """Nothing that has outlived the guard, and nothing of the cluster that follows, outlives the kernel."""
    notebook = new_notebook()
    notebook.run(IMPORTS + SETUP)
    notebook.run("%distribute start -n 2 --device cpu\nmake()")
    pids = notebook.value(f"{SESSION}.get().cluster.pids()")
    cell = notebook.start(f"%%distribute --engines 2{CELL}")
    notebook.wait(lambda: (notebook.folder / "steps").exists() or not cell.running, "a step", cell)
    os.kill(pids["guard"], signal.SIGKILL)
    template = psutil.Process(pids["template"])
    notebook.wait(lambda: "the process that watches over" in cell.stderr or not cell.running, "its end", cell)
    below = [template, *template.children(recursive=True)]
    kill_kernel(notebook)
    assert psutil.wait_procs(below, timeout=10)[1] == []


@pytest.mark.long
@pytest.mark.parametrize("ranks", [[3], [1, 2]])
def test_of_four_engines(four, ranks):
    cell = four.start()
    four.wait_for_snapshot(cell)
    for rank in ranks:
        os.kill(four.pids[rank], signal.SIGKILL)
    assert "resuming from step " in four.finish(cell)


@pytest.mark.long
def test_an_engine_that_dies_at_the_same_place_each_time_ends_the_cell(two):
    notebook = two.notebook
    notebook.run("make()")
    cell = notebook.fail("%%distribute --engines 2\nfor x, y, index in loader:\n    model(x).sum().backward()\n    os.kill(os.getpid(), 9)")
    assert cell.error[0] == "ClusterError"
    assert "for the third time at the same point: giving up" in cell.stderr
    two.finish(two.start())


@pytest.mark.long
def test_the_kernel_killed_and_the_run_resumed_in_another(new_notebook, two):
    first = new_notebook()
    first.run(IMPORTS + SETUP)
    first.run("%distribute start -n 2 --device cpu\nmake()")
    cell = first.start(f"%%distribute --engines 2 --checkpoint-every 1s --name digits{CELL}")
    first.wait(lambda: checkpoints(first) or not cell.running, "a checkpoint", cell)
    assert cell.running
    kill_kernel(first)
    second = new_notebook(first.folder)
    second.run("%load_ext jupyter_dtrain")
    assert "digits: resuming from step " in second.run("%distribute resume").stderr
    second.run("import random, numpy as np, torch\ntorch.set_default_dtype(torch.float64)")
    assert second.value(STATE) == two.expected
    assert second.value(f"{SESSION}.telemetry.views.snapshot().run.phase") == "finished"


ELSEWHERE = """
for epoch in range(8):
    for batch, (x, y, index) in enumerate(loader):
        loss = F.cross_entropy(net(x), y) + 0.01 * torch.randn(())
        momentum.zero_grad()
        loss.backward()
        momentum.step()
        losses.append(loss.item())
        used.append(index.tolist())
        pace()
"""
OTHERS = """
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2))
momentum = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loader, losses, used = DataLoader(Digits(396), batch_size=16, shuffle=True), [], []
"""
SLOW_BEHIND_THE_CHECKPOINT = """
fast = pace
def pace():
    import os, time
    fast()
    if len(used) > 60 and not os.path.exists("all"):
        time.sleep(0.3)  # so that it is stopped before its end
"""


@pytest.fixture(scope="module")
def stopped(two):
    """A folder with a run of two engines that was stopped behind a checkpoint, and what it would have come to."""
    with two.lent() as notebook:
        notebook.run(OTHERS)
        notebook.run("pace = lambda: None\n" + ELSEWHERE)
        expected = notebook.value("([p.detach() for p in net.parameters()], losses, used)")
        notebook.run(SETUP + OTHERS + SLOW_BEHIND_THE_CHECKPOINT)
        (notebook.folder / "all").unlink(missing_ok=True)
        cell = notebook.start(f"%%distribute --engines 2 --checkpoint-every 60 --name stopped{ELSEWHERE}")
        checkpoint = lambda: list(notebook.folder.glob("dtrain-runs/*stopped*/checkpoints/step-000060"))  # noqa: E731
        notebook.wait(lambda: checkpoint() or not cell.running, "a checkpoint", cell)
        notebook.interrupt()
        notebook.finish(cell)
        assert "Interrupted" in cell.stderr
    (notebook.folder / "all").touch()  # where the cell began it goes on
    return notebook.folder, expected


@pytest.mark.parametrize("engines", one_of(3, [3, 2, 1]))
def test_resumed_on_any_number_of_engines(new_notebook, stopped, tmp_path, engines):
    folder, expected = stopped
    copy_folder(folder / "dtrain-runs", tmp_path / "dtrain-runs")
    notebook = new_notebook(tmp_path)
    notebook.run("%load_ext jupyter_dtrain")
    assert "stopped: resuming from step 60." in notebook.run(f"%distribute resume stopped -n {engines}").stderr
    found = notebook.value("([p.detach() for p in net.parameters()], losses, used)")
    assert difference(found, expected) is None


@pytest.mark.parametrize("spoilt", one_of(2, ["0", "manifest.json"]))
def test_a_damaged_checkpoint_is_never_used(new_notebook, stopped, tmp_path, spoilt):
    folder, _ = stopped
    copy_folder(folder / "dtrain-runs", tmp_path / "dtrain-runs")
    for path in tmp_path.glob(f"dtrain-runs/*/checkpoints/*/{spoilt}"):
        path.write_bytes(path.read_bytes()[:-1])
    notebook = new_notebook(tmp_path)
    notebook.run("%load_ext jupyter_dtrain")
    cell = notebook.fail("%distribute resume stopped")
    assert cell.error[0] == "CheckpointError"
    assert "run its cell again" in cell.error[1]
    assert "is damaged" in cell.error[1]
    assert notebook.run("%%distribute --engines 2 --device cpu\n1 + 1").result == "2"


def test_there_is_nothing_to_resume(new_notebook):
    notebook = new_notebook()
    notebook.run("%load_ext jupyter_dtrain")
    cell = notebook.fail("%distribute resume")
    assert cell.error == ("CheckpointError", "No unfinished run in this folder has a checkpoint: run the cell.")
    assert notebook.fail("%distribute resume nobody").error == ("CheckpointError", "There is no run 'nobody' here.")
