"""A notebook whose cell is disturbed: a training loop as people write them, and what it comes to undisturbed.

The cell counts its steps in a file, so a test knows where it is while it runs. What it notes of the samples that it used is part of
what is compared: each is used once in the history that counts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.system.atomic_files import UNFINISHED
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import LIMIT, SESSION, Cell, Notebook, difference

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
    # The second layer is so large that each rank copies a part of it and of its moments for a snapshot.
    model = nn.Sequential(
        nn.Linear(12, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 2)
    )
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
STUCK = "its process neither reported nor computed any more, and was ended"
"""Why an engine is lost that was stopped."""
STATE = (
    "([p.detach().numpy().tobytes() for p in model.state_dict().values()],"
    " [{k: v.numpy().tobytes() for k, v in s.items()} for s in optimizer.state_dict()['state'].values()],"
    " scheduler.state_dict()['last_epoch'], history, used, torch.rand(2).tolist(), random.random(), np.random.rand(), epoch, loss)"
)

SLOW_UNTIL_ALL = """
fast = pace
def pace():
    import os, time
    fast()
    if not os.path.exists("all"):
        time.sleep(0.3)  # so that the engines come back before the end
"""
AS_FAST = "pace = fast"
ROUNDED = "([p.detach() for p in model.state_dict().values()], history, used, torch.rand(2), epoch, loss)"


class Disturbed:
    """A notebook whose cell is disturbed, on `engines` engines, after another `setup` perhaps; `options` are those of its own run."""

    def __init__(self, notebook: Notebook, engines: int, setup: str = SETUP, *, options: str = "") -> None:
        self.notebook, self.engines, self._setup, self._options = notebook, engines, setup, options
        notebook.run(IMPORTS + setup)
        notebook.run(f"%distribute start -n {engines} --device cpu")
        self.printed = self.go().stdout
        # Both end with random numbers, which are to be the same ones.
        both = f"(lambda drawn: ({ROUNDED}, torch.set_rng_state(drawn), {STATE}))(torch.get_rng_state())"
        self.rounded, _, self.expected = notebook.value(both)
        batches = notebook.value("used")
        for epoch in range(6):
            assert sorted(index for batch in batches[epoch * 25 :][:25] for index in batch) == list(range(396))

    @contextlib.contextmanager
    def another(self, setup: str = SETUP, *, options: str = "") -> Iterator[Disturbed]:
        """Yield one of another setup, or other options, in the same notebook: this one's is as it was afterwards."""
        with self.lent() as notebook:
            yield Disturbed(notebook, self.engines, setup, options=options)

    @contextlib.contextmanager
    def lent(self) -> Iterator[Notebook]:
        """Yield the notebook, for cells of others: another kernel and other engines would take seconds to start."""
        try:
            yield self.notebook
        finally:
            self.notebook.end_running()
            self.notebook.run(IMPORTS + self._setup)

    def start(self, options: str = "", *, first: str = "") -> Cell:
        """Begin the cell; `first` is a line before its own."""
        (self.notebook.folder / "steps").unlink(missing_ok=True)
        self.notebook.run(f"%distribute start -n {self.engines} --device cpu")
        self.notebook.run("make()")
        self.pids = self.notebook.engines()
        # pids of the guard, the controller and what else there is; folder of what ranks share
        self.processes, self.memory = self.notebook.value(f"(lambda cluster: (cluster.pids(), cluster.blob_dir))({SESSION}.get().cluster)")
        return self.notebook.start(f"%%distribute --engines {self.engines} {options}\n{first}{CELL}")

    def go(self) -> Cell:
        """Run the cell undisturbed."""
        cell = self.notebook.finish(self.start(self._options))
        assert cell.ok, cell
        return cell

    def wait_for_step(self, step: int, cell: Cell) -> None:
        path = Path(self.notebook.folder / "steps")
        self.notebook.wait(lambda: not cell.running or (path.exists() and path.stat().st_size >= step), f"step {step}", cell)
        assert cell.running

    def wait_for_snapshot(self, cell: Cell) -> None:
        whole = lambda: any(  # noqa: E731
            len(list(file.parent.glob(f"{file.name.partition('-')[0]}-*[0-9]"))) == self.engines for file in self.memory.glob(".*/*-0")
        )
        self.notebook.wait(lambda: not cell.running or whole(), "a snapshot", cell)
        # The kernel hears of it from the engines, a moment later.
        steps = self.notebook.folder / "steps"
        done = steps.stat().st_size if steps.exists() else 0  # one may be taken before the first
        self.wait_for_step(1 + done + 20, cell)

    @contextlib.contextmanager
    def slow_until_all(self) -> Iterator[object]:
        """Let the cell be slow until all of its engines are there again, and yield what it comes to undisturbed."""
        (self.notebook.folder / "all").unlink(missing_ok=True)
        with self.notebook.changed(SLOW_UNTIL_ALL, AS_FAST):
            yield self.rounded

    def go_on_with_fewer(self, cell: Cell, killed: Iterable[int], *, left: int) -> None:
        """Kill engines, and see the cell make some steps on those that are left."""
        for rank in killed:
            os.kill(self.pids[rank], signal.SIGKILL)
        fewer = f"continuing on {left} engine{'s' if left > 1 else ''}, and"
        self.notebook.wait(lambda: fewer in cell.stderr or not cell.running, "fewer engines", cell)
        assert cell.running, cell
        self.wait_for_step((self.notebook.folder / "steps").stat().st_size + 5, cell)

    def finish_with_all(self, cell: Cell) -> None:
        """Wait until there are as many engines as at first, and for the end."""
        back = f"with {self.engines} engines."
        self.notebook.wait(lambda: back in cell.stderr or not cell.running, "all engines again", cell)
        (self.notebook.folder / "all").touch()
        self.notebook.finish(cell)

    def finish(self, cell: Cell) -> str:
        """Wait for the end, compare, and return what this project said meanwhile."""
        self.notebook.finish(cell)
        assert cell.ok, cell
        assert self.notebook.value(STATE) == self.expected
        said = [line for line in cell.stdout.splitlines() if not line.startswith("epoch")]
        assert [line for line in cell.stdout.splitlines() if line.startswith("epoch")] == self.printed.splitlines(), "each line once"
        return "\n".join([*said, cell.stderr])


class NoNewEngines:
    """Kills every engine that the process `guard` starts, but `known` pids, until it is told to stop."""

    def __init__(self, guard: int, known: Iterable[int]) -> None:
        self._guard, self._known = psutil.Process(guard), set(known)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _kill(self) -> None:
        while not self._over.wait(0.005):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just been collected, or the guard has gone with all of them
                for child in self._guard.children():
                    if child.pid not in self._known:
                        child.kill()


def wait_closely(condition: Callable[[], object], what: str) -> None:
    """Wait for what is there for a few milliseconds only."""
    _wait(condition, what, pause=0.0005)


def wait_long(condition: Callable[[], object], what: str) -> None:
    """Wait for what takes seconds: looked at as seldom, the looking leaves the processor to those who are waited for."""
    _wait(condition, what, pause=0.01)


def _wait(condition: Callable[[], object], what: str, *, pause: float) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        time.sleep(pause)
        assert time.monotonic() < deadline, f"{what} did not come"


def checkpoints(notebook: Notebook) -> list[Path]:
    """Return the folders of the checkpoints that can be seen, of all runs."""
    return list(notebook.folder.glob("dtrain-runs/*/checkpoints/step-*"))


def check_checkpoints(notebook: Notebook, *, finished: bool) -> None:
    """Check that each checkpoint that can be seen is whole and, where the run has ended by itself, that there is nothing else."""
    for path in checkpoints(notebook):
        CheckpointFolder(path.parent.parent).intact(int(path.name.removeprefix("step-")))
    parts = list(notebook.folder.glob("dtrain-runs/*/checkpoints/.*"))
    assert not (finished and parts), parts


def kill_kernel(notebook: Notebook) -> None:
    """Kill the kernel; everything below it has to go by itself."""
    provisioner = notebook.manager.provisioner
    assert isinstance(provisioner, LocalProvisioner)
    kernel = psutil.Process(provisioner.pid)
    children = kernel.children(recursive=True)
    kernel.kill()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def kill_behind_a_checkpoint(notebook: Notebook, strategy: str, setup: str = SETUP) -> Path:
    """Run the cell on two engines under `strategy` until there is a checkpoint, kill the kernel, and return the notebook's folder."""
    notebook.run(IMPORTS + setup)
    notebook.run("%distribute start -n 2 --device cpu\nmake()")
    cell = notebook.start(f"%%distribute --engines 2 --strategy {strategy} --checkpoint-every 20 --name digits{CELL}")
    notebook.wait(lambda: checkpoints(notebook) or not cell.running, "a checkpoint", cell)
    assert cell.running
    kill_kernel(notebook)
    return notebook.folder


def resume_killed(notebook: Notebook, engines: int) -> None:
    """Let that cell go on in the kernel of `notebook`, which has its folder, on so many engines."""
    notebook.run("%load_ext jupyter_dtrain")
    assert "digits: resuming from step " in notebook.run(f"%distribute resume digits -n {engines}").stderr
    notebook.run("import random, numpy as np, torch\ntorch.set_default_dtype(torch.float64)")


def copy_folder(folder: Path, copy: Path) -> None:
    """Copy a folder in which somebody may be at work: what is being written there has another name a moment later, and is left out."""
    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{UNFINISHED}*"))


@dataclass(frozen=True)
class Killed:
    """The folder of a notebook whose kernel was killed in the midst of a cell, and what that is to come to."""

    folder: Path
    expected: object
    rounded: object

    @classmethod
    def behind_a_checkpoint(cls, notebook: Notebook, undisturbed: Disturbed, strategy: str, setup: str = SETUP) -> Killed:
        """Run the cell under `strategy` in `notebook`, and kill its kernel."""
        folder = kill_behind_a_checkpoint(notebook, strategy, setup)
        undisturbed.go()
        return cls(folder, undisturbed.expected, undisturbed.notebook.value(ROUNDED))

    def check_resumed(self, new_notebook: Callable[[Path], Notebook], folder: Path, engines: int) -> None:
        """Let the cell go on in a copy of its folder, in a new kernel on so many engines, and compare."""
        copy_folder(self.folder, folder)
        notebook = new_notebook(folder)
        resume_killed(notebook, engines)
        if engines == 2:  # to the last bit: all that is rounded below too, and random numbers, which can be drawn once
            assert notebook.value(STATE) == self.expected
        else:
            assert difference(notebook.value(ROUNDED), self.rounded) is None
