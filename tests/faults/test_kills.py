"""Engines, controller and kernel killed at any moment of a cell: it ends with the same weights, to the last bit.

The cell counts its steps in a file, so a test knows where it is while it runs. What it notes of the samples that it used is part of
what is compared: each is used once in the history that counts.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, Notebook, difference

SETUP = """
import os, random
import numpy as np
from torch.utils.data import Dataset

class Digits(Dataset):
    def __init__(self, size):
        self.x = torch.randn(size, 12, generator=torch.Generator().manual_seed(1))
        self.y = (self.x.sum(1) > 0).long()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index], self.y[index], index

def make():
    global model, optimizer, scheduler, loader, history, used
    torch.manual_seed(0); np.random.seed(0); random.seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    loader = DataLoader(Digits(396), batch_size=16, shuffle=True)
    history, used = [], []

def train_one_epoch(model, loader, pace):
    model.train()
    total, count = 0.0, 0
    for batch, (x, y, index) in enumerate(loader):
        x = x + 0.01 * torch.randn(x.shape)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        count += len(y)
        used.append(index.tolist())
        pace()
    return total / count

def pace():
    import time
    with open("steps", "ab") as file:
        file.write(b".")
    time.sleep(0.015)  # a step of a model that is worth several engines

def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y, _ in loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right / len(loader.dataset)
"""
CELL = """
for epoch in range(6):
    loss = train_one_epoch(model, loader, pace)
    scheduler.step()
    accuracy = evaluate(model, loader)
    history.append((epoch, loss, accuracy, random.random(), np.random.rand()))
    print(f"epoch {epoch}: loss {loss:.6f}, accuracy {accuracy:.4f}")
"""
STEPS = 6 * 25
STATE = (
    "([p.detach().numpy().tobytes() for p in model.state_dict().values()],"
    " [{k: v.numpy().tobytes() for k, v in s.items()} for s in optimizer.state_dict()['state'].values()],"
    " scheduler.state_dict()['last_epoch'], history, used, torch.rand(2).tolist(), random.random(), np.random.rand(), epoch, loss)"
)


class Run:
    """A notebook whose cell is disturbed, and what it comes to undisturbed."""

    def __init__(self, notebook: Notebook, engines: int) -> None:
        self.notebook, self.engines = notebook, engines
        notebook.run(IMPORTS + SETUP)
        notebook.run(f"%distribute start -n {engines} --device cpu")
        self.printed = self.go().stdout
        self.expected = notebook.value(STATE)

    def start(self):
        (self.notebook.folder / "steps").unlink(missing_ok=True)
        self.notebook.run(f"%distribute start -n {self.engines} --device cpu")
        self.notebook.run("make()")
        self.pids = self.notebook.engines()
        self.controller, self.memory = self.notebook.value(
            f"(lambda cluster: (cluster.pids()['controller'], cluster.blob_dir))({SESSION}.get().cluster)"
        )
        return self.notebook.start(f"%%distribute --engines {self.engines}{CELL}")

    def go(self):
        cell = self.notebook.finish(self.start())
        assert cell.ok, cell
        return cell

    def wait_for_step(self, step: int, cell) -> None:
        path = Path(self.notebook.folder / "steps")
        self.notebook.wait(lambda: not cell.running or (path.exists() and path.stat().st_size >= step), f"step {step}", cell)
        assert cell.running

    def wait_for_snapshot(self, cell) -> None:
        whole = lambda: any(  # noqa: E731
            len(list(file.parent.glob(f"{file.name.partition('-')[0]}-*[0-9]"))) == self.engines for file in self.memory.glob(".*/*-0")
        )
        self.notebook.wait(lambda: not cell.running or whole(), "a snapshot", cell)
        # The kernel hears of it from the engines, a moment later.
        self.wait_for_step(1 + (self.notebook.folder / "steps").stat().st_size + 10, cell)

    def finish(self, cell) -> str:
        """Wait for the end, compare, and return what this project said meanwhile."""
        self.notebook.finish(cell)
        assert cell.ok, cell
        assert self.notebook.value(STATE) == self.expected
        said = [line for line in cell.stdout.splitlines() if not line.startswith("epoch")]
        assert [line for line in cell.stdout.splitlines() if line.startswith("epoch")] == self.printed.splitlines(), "each line once"
        return "\n".join([*said, cell.stderr])


@pytest.fixture(scope="module")
def two(new_notebook):
    return Run(new_notebook(), 2)


@pytest.fixture(scope="module")
def four(new_notebook):
    return Run(new_notebook(), 4)


def moments(number: int) -> list[tuple[int, int]]:
    """Return (step, seed) of that many moments, the same every time."""
    draw = random.Random(number)
    return [(draw.randrange(2, STEPS - 10), seed) for seed in range(number)]


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize(("step", "seed"), moments(metafunc.config.getoption("--kills")))


def test_an_engine_killed_at_any_moment(two, step, seed):
    cell = two.start()
    two.wait_for_step(step, cell)
    rank = seed % 2
    os.kill(two.pids[rank], signal.SIGKILL)
    said = two.finish(cell)
    assert f"Lost rank {rank} (its process has ended): going on from " in said


def test_undisturbed_it_comes_to_the_same_again(two):
    assert two.finish(two.start()).strip() == ""


def test_both_engines_at_once(two):
    cell = two.start()
    two.wait_for_snapshot(cell)
    for pid in two.pids:
        os.kill(pid, signal.SIGKILL)
    assert "Lost ranks 0, 1 (its process has ended): going on from step " in two.finish(cell)


def test_one_after_the_other(two):
    cell = two.start()
    two.wait_for_step(60, cell)
    os.kill(two.pids[1], signal.SIGKILL)
    two.wait_for_step(100, cell)
    os.kill(two.pids[0], signal.SIGKILL)
    said = two.finish(cell)
    assert said.count("Lost rank") == 2


def test_an_engine_that_is_stopped_and_not_dead(two):
    cell = two.start()
    two.wait_for_snapshot(cell)
    os.kill(two.pids[0], signal.SIGSTOP)
    assert "Lost rank 0 (its process has ended): going on from step " in two.finish(cell)


def test_the_controller(two):
    cell = two.start()
    two.wait_for_snapshot(cell)
    os.kill(two.controller, signal.SIGKILL)
    assert "(the controller of the engines has ended): going on from step " in two.finish(cell)


@pytest.mark.parametrize("ranks", [[3], [1, 2]])
def test_of_four_engines(four, ranks):
    cell = four.start()
    four.wait_for_snapshot(cell)
    for rank in ranks:
        os.kill(four.pids[rank], signal.SIGKILL)
    assert "going on from step " in four.finish(cell)


def test_an_engine_that_dies_at_the_same_place_each_time_ends_the_cell(two):
    notebook = two.notebook
    notebook.run("make()")
    cell = notebook.fail("%%distribute --engines 2\nfor x, y, index in loader:\n    model(x).sum().backward()\n    os.kill(os.getpid(), 9)")
    assert cell.error[0] == "ClusterError"
    assert "for the third time at the same place: giving up" in cell.stderr
    two.finish(two.start())


def test_the_kernel_killed_and_the_run_resumed_in_another(new_notebook, two):
    first = new_notebook()
    first.run(IMPORTS + SETUP)
    first.run("%distribute start -n 2 --device cpu\nmake()")
    cell = first.start(f"%%distribute --engines 2 --checkpoint-every 1s --name digits{CELL}")
    first.wait(lambda: list(first.folder.glob("dtrain-runs/*/checkpoints/step-*")) or not cell.running, "a checkpoint", cell)
    assert cell.running
    kernel = psutil.Process(first.manager.provisioner.pid)
    children = kernel.children(recursive=True)
    kernel.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    second = new_notebook(first.folder)
    second.run("%load_ext jupyter_dtrain")
    assert "digits: going on from step " in second.run("%distribute resume").stderr
    second.run("import random, numpy as np, torch\ntorch.set_default_dtype(torch.float64)")
    assert second.value(STATE) == two.expected
    assert second.value(f"{SESSION}.snapshot().run.phase") == "finished"


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


@pytest.fixture(scope="module")
def stopped(new_notebook):
    """A notebook with the folder of a run of two engines that was stopped behind a checkpoint, and what it would have come to."""
    notebook = new_notebook()
    notebook.run(IMPORTS + SETUP + OTHERS)
    notebook.run("pace = lambda: None\n" + ELSEWHERE)
    expected = notebook.value("([p.detach() for p in net.parameters()], losses, used)")
    notebook.run(SETUP + OTHERS)
    cell = notebook.start(f"%%distribute --engines 2 --checkpoint-every 60 --name stopped{ELSEWHERE}")
    checkpoint = lambda: list(notebook.folder.glob("dtrain-runs/*/checkpoints/step-000060"))  # noqa: E731
    notebook.wait(lambda: checkpoint() or not cell.running, "a checkpoint", cell)
    notebook.interrupt()
    notebook.finish(cell)
    assert "Interrupted" in cell.stderr
    return notebook.folder, expected


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_resumed_on_any_number_of_engines(new_notebook, stopped, tmp_path, engines):
    folder, expected = stopped
    shutil.copytree(folder / "dtrain-runs", tmp_path / "dtrain-runs")
    notebook = new_notebook(tmp_path)
    notebook.run("%load_ext jupyter_dtrain")
    assert "stopped: going on from step 60." in notebook.run(f"%distribute resume stopped -n {engines}").stderr
    found = notebook.value("([p.detach() for p in net.parameters()], losses, used)")
    assert difference(found, expected) is None


@pytest.mark.parametrize("spoilt", ["0", "manifest.json"])
def test_a_damaged_checkpoint_is_never_used(new_notebook, stopped, tmp_path, spoilt):
    folder, _ = stopped
    shutil.copytree(folder / "dtrain-runs", tmp_path / "dtrain-runs")
    for path in tmp_path.glob(f"dtrain-runs/*/checkpoints/*/{spoilt}"):
        path.write_bytes(path.read_bytes()[:-1])
    notebook = new_notebook(tmp_path)
    notebook.run("%load_ext jupyter_dtrain")
    cell = notebook.fail("%distribute resume stopped")
    assert cell.error[0] == "CheckpointError"
    assert "run its cell again" in cell.error[1]
    assert "is damaged" in cell.stderr
    assert notebook.run("%%distribute --engines 2 --device cpu\n1 + 1").result == "2"


def test_there_is_nothing_to_resume(new_notebook):
    notebook = new_notebook()
    notebook.run("%load_ext jupyter_dtrain")
    cell = notebook.fail("%distribute resume")
    assert cell.error == ("CheckpointError", "There is no run here that has not finished and has a checkpoint: run the cell.")
    assert notebook.fail("%distribute resume nobody").error == ("CheckpointError", "There is no run 'nobody' here.")
