"""An engine, or the kernel, killed while trials run side by side."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest

from tests.faults.disturbed import kill_kernel
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, difference
from tests.processes import find_processes

SETUP = """
import os, time
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
lr = 0.5
"""
CELL = """
print("process", os.getpid())
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
steps = 0
for epoch in range(40):
    for a, b in loader:
        loss = F.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        steps += 1
        time.sleep(PACE)
    print("epoch", epoch)
final = loss.item()
"""
LINE = "%%distribute --engines 2 --vary lr=0.1,0.01 --best final"
STATE = "([p.detach() for p in model.parameters()], optimizer.state_dict(), lr, steps, final, torch.rand(3).tolist())"


@pytest.fixture
def trying(new_notebook):
    notebook = new_notebook()
    notebook.run(IMPORTS)
    return notebook


def begun(notebook, *, pace):
    """Start the trials, wait until both are in their fifth epoch, and return the cell and the processes by learning rate."""
    notebook.run(SETUP + f"PACE = {pace}")
    cell = notebook.start(LINE + CELL)
    notebook.wait(lambda: all(f"[lr={lr}] epoch 4" in cell.stdout for lr in (0.1, 0.01)) or not cell.running, "both at work", cell)
    return cell, {float(lr): int(pid) for lr, pid in re.findall(r"\[lr=(\S+)\] process (\d+)", cell.stdout)}


@pytest.mark.long
def test_an_engine_of_each_trial_in_turn(trying):
    trying.run(SETUP + "PACE = 0")
    trying.run(LINE + CELL)
    expected = trying.value(STATE)
    cell, processes = begun(trying, pace=0.01)
    os.kill(processes[0.1], signal.SIGKILL)
    trying.wait_for_stdout(cell, "[lr=0.01] epoch 12")
    os.kill(processes[0.01], signal.SIGKILL)
    trying.finish(cell)
    assert cell.ok
    assert difference(trying.value(STATE), expected) is None
    for lr in (0.1, 0.01):
        assert f"[lr={lr}] Lost rank 0 (its process has ended)" in cell.stderr
        assert re.findall(rf"\[lr={lr}\] epoch (\d+)", cell.stdout) == [str(epoch) for epoch in range(40)], "each line once"


@pytest.mark.long
def test_an_engine_of_a_trial_that_is_stopped_early(trying):
    """What is decided, and what the record has of it, is what it would have been."""
    line = "%%distribute --engines 2 --vary lr=0.05,0.0001 --search asha:2,seed=1,min_resource=10 --best final"
    code = CELL.replace("    print(", "    final = loss.item()\n    print(")
    record = (
        f"[(r.hyperparameters['lr'], r.phase, *[(c.step, c.value) for c in [{SESSION}.get()._store.points(r.run_id, 'final')]]) for r in "
    )
    record += f"{SESSION}.get()._store.list_runs()[-2:]]"
    trying.run(SETUP + "PACE = 0")
    trying.run(line + code)
    expected, state = sorted(trying.value(record)), trying.value(STATE)
    assert [(lr, phase, len(steps)) for lr, phase, (steps, _) in expected] == [(0.0001, "pruned", 10), (0.05, "finished", 40)]
    trying.run(SETUP + "PACE = 0.01")
    cell = trying.start(line + code)
    trying.wait_for_stdout(cell, "[lr=0.0001] epoch 5")
    (process,) = re.findall(r"\[lr=0.0001\] process (\d+)", cell.stdout)
    os.kill(int(process), signal.SIGKILL)
    trying.finish(cell)
    assert cell.ok
    assert "[lr=0.0001] Lost rank 0 (its process has ended)" in cell.stderr
    assert sorted(trying.value(record)) == expected
    assert difference(trying.value(STATE), state) is None


@pytest.mark.long
def test_the_controller_of_one(trying):
    trying.run(SETUP + "PACE = 0")
    trying.run(LINE + CELL)
    expected = trying.value(STATE)
    cell, processes = begun(trying, pace=0.01)
    guard = psutil.Process(processes[0.1]).parent()
    assert guard is not None
    (controller,) = find_processes(guard.children(), "jupyter_dtrain.cluster.controller_app")
    controller.kill()
    trying.finish(cell)
    assert cell.ok
    assert difference(trying.value(STATE), expected) is None
    assert "[lr=0.1] Lost rank 0" in cell.stderr
    assert "[lr=0.01] Lost" not in cell.stderr
    assert trying.run(LINE + "\nfinal = lr").ok


@pytest.mark.long
def test_the_kernel(trying):
    _, processes = begun(trying, pace=0.05)
    kernel = psutil.Process(trying.manager.provisioner.pid)
    everything = kernel.children(recursive=True)
    assert set(processes.values()) < {process.pid for process in everything}
    kill_kernel(trying)
    assert psutil.wait_procs(everything, timeout=60)[1] == []
