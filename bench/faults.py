"""What faults cost: engines killed every so often, and an interrupt, against ``torchrun --max-restarts``.

Both run the same endless training on two CPU processes, one of which is killed in turn. Ours is a notebook cell with no code for it; the
script saves a checkpoint once a second, as often as ours takes snapshots, and loads it when it starts, as the documentation of ``torchrun``
says. Every rank notes its steps in a file, and all figures but two come from there. The two take turns.

    python -m bench.faults [--rounds 2] [--kills 3] [--period 30] [--interrupts 5] [--quick]
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from .contenders import ENVIRONMENT, LIMIT, Kernel
from .report import spread

QUIET = 0.5
"""Part of the time between two kills at whose end nothing is left of the first: there the pace is taken."""

NOTE = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def note(step):
    with open(f"{folder}/rank-{{dist.get_rank()}}", "a") as file:
        file.write(f"{{step}} {{time.time()}} {{os.getpid()}}\\n")
"""

MODEL = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(64 * 1000, 64), torch.randint(10, (64 * 1000,)))
"""

CELL = """%%distribute --engines 2 --device cpu
loader = DataLoader(data, batch_size=64, shuffle=True)
step = 0
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        note(step)
        time.sleep(0.01)
"""

SCRIPT = """
import itertools
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
# In a store that outlives the processes, the next ones meet the addresses of those before, and it may take minutes until they get over it.
agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], agents)
dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
step = 0
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); step = saved["step"]
ddp = DistributedDataParallel(model)
sampler = DistributedSampler(data, seed=0)
loader = DataLoader(data, batch_size=32, sampler=sampler)
last = time.time()
while True:
    sampler.set_epoch(step // len(loader))
    for x, y in itertools.islice(loader, step % len(loader), None):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        step += 1
        note(step)
        if dist.get_rank() == 0 and time.time() - last > 1:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "saved.part")
            os.replace("saved.part", "saved.pt")
            last = time.time()
        time.sleep(0.01)
"""


@dataclass(frozen=True)
class Step:
    """A step that a rank has done: which, when (seconds since the epoch), and in which process."""

    number: int
    time: float
    pid: int


@dataclass(frozen=True)
class Recovery:
    """What one kill cost.

    Attributes
    ----------
    again : float
        Seconds until the killed rank has done a step again, any.
    new : float
        Seconds until it has done one that it had not done before.
    repeated : int
        Steps that it did again.
    """

    again: float
    new: float
    repeated: int


@dataclass
class Figures:
    """What one contender's faults cost, over all rounds.

    Attributes
    ----------
    noticed : list of float
        Seconds from each kill until it is said.
    recoveries : list of Recovery
    lost : list of float
        Of each round, seconds of work that one kill cost.
    prompt : list of float
        Seconds from each interrupt to the prompt.
    """

    noticed: list[float] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)


def recovery(steps: Sequence[Step], killed: float) -> Recovery | None:
    """Return what the steps of a rank say of its death at `killed`, ``None`` as long as it has done no new one."""
    at = bisect.bisect_right(steps, killed, key=lambda step: step.time)
    reached = max(step.number for step in steps[:at])
    after = steps[at:]
    new = next((index for index, step in enumerate(after) if step.number > reached), None)
    return None if new is None else Recovery(after[0].time - killed, after[new].time - killed, new)


def lost_per_kill(steps: Sequence[Step], kills: Sequence[float], end: float) -> float:
    """Return the seconds of work that one of `kills` cost on average.

    How far the run came from the first kill to the end is compared with how far it comes in that time at the pace of the quiet ends of
    the times between two kills, so that it does not matter whether the machine is slower today.
    """
    quiet = [(stop - QUIET * (stop - start), stop) for start, stop in pairwise([*kills, end])]
    pace = sum(_reached(steps, stop) - _reached(steps, start) for start, stop in quiet) / sum(stop - start for start, stop in quiet)
    return (end - kills[0] - (_reached(steps, end) - _reached(steps, kills[0])) / pace) / len(kills)


def _reached(steps: Sequence[Step], moment: float) -> int:
    return max(step.number for step in steps[: bisect.bisect_right(steps, moment, key=lambda step: step.time)])


class DataParallelTraining(ABC):
    """The endless training on two processes, which note their steps in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[tuple[float, str]] = []  # when, and what

    @abstractmethod
    def begin(self) -> None:
        """Begin to train, which goes on in the background."""

    @abstractmethod
    def interrupt(self) -> None:
        """Interrupt it as a user does, and wait for the end."""

    @abstractmethod
    def is_notice(self, text: str) -> bool:
        """Return whether a line says that a rank has been lost."""

    @abstractmethod
    def close(self) -> None:
        """End what is still running."""

    def note(self, text: str) -> None:
        """Take what is said."""
        self.said.append((time.time(), text))

    def steps(self, rank: int) -> list[Step]:
        """Return what a rank has done."""
        path = self.folder / f"rank-{rank}"
        lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
        return [Step(int(number), float(seconds), int(pid)) for number, seconds, pid in lines]

    def started(self) -> float:
        """Begin anew and return when the training is under way."""
        for rank in range(2):
            (self.folder / f"rank-{rank}").unlink(missing_ok=True)
        self.said.clear()
        self.begin()
        wait(lambda: len(self.steps(0)) > 20 and len(self.steps(1)) > 20, "the first steps")
        return time.time()

    def timed_interrupt(self) -> float:
        """Return how long an interrupt takes."""
        began = time.time()
        self.interrupt()
        return time.time() - began

    def disturb(self, kills: int, period: float, figures: Figures) -> None:
        """Train for `kills` and one more periods of so many seconds, kill a rank at the end of each but the last, and note the costs."""
        end = self.started() + period
        killed: list[float] = []
        for index in range(kills):
            until(end)
            pid = self.steps(index % 2)[-1].pid
            killed.append(time.time())
            os.kill(pid, signal.SIGKILL)
            found = self._wait_for_recovery(index % 2, killed[-1])
            figures.recoveries.append(found)
            end = killed[-1] + max(period, found.new / (1 - QUIET))
        until(end)
        steps = [step for step in self.steps(0) if step.time <= end]
        figures.prompt.append(self.timed_interrupt())
        figures.noticed += [next(when for when, text in self.said if when > moment and self.is_notice(text)) - moment for moment in killed]
        figures.lost.append(lost_per_kill(steps, killed, end))

    def _wait_for_recovery(self, rank: int, killed: float) -> Recovery:
        try:
            wait(lambda: recovery(self.steps(rank), killed), "a new step after a kill")
        except TimeoutError as error:
            raise RuntimeError(f"{type(self).__name__} has not gone on after a kill:\n{''.join(text for _, text in self.said)}") from error
        found = recovery(self.steps(rank), killed)
        assert found is not None
        return found


class Cell(DataParallelTraining):
    """A notebook's cell on engines that are up."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._place = tempfile.TemporaryDirectory()  # not where the steps are, which each rank is to write for itself
        self._kernel = Kernel(Path(self._place.name))
        self._kernel.run("%load_ext jupyter_dtrain\n%distribute start -n 2 --device cpu\n" + NOTE.format(folder=folder))
        self._kernel.run("%%distribute --engines 2 --device cpu\n1")

    def begin(self) -> None:
        self._kernel.run(MODEL)
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        with contextlib.suppress(RuntimeError):  # the interrupt
            self._kernel.run(CELL, limit=None, on_text=self.note)

    def interrupt(self) -> None:
        self._kernel.manager.interrupt_kernel()
        self._thread.join(LIMIT)

    def is_notice(self, text: str) -> bool:
        return "Lost rank" in text

    def close(self) -> None:
        self._kernel.close()
        self._place.cleanup()


class Script(DataParallelTraining):
    """A script under ``torchrun``."""

    process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        (self.folder / "saved.pt").unlink(missing_ok=True)
        (self.folder / "script.py").write_text(NOTE.format(folder=self.folder) + MODEL + SCRIPT)
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=100"),
            *("--standalone", "--local-addr=127.0.0.1", "script.py"),
        ]
        self.process = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.note(line)

    def interrupt(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(LIMIT)

    def is_notice(self, text: str) -> bool:
        return "closing signal" in text or "failed (exitcode" in text

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
            self.process.wait()


def wait(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def until(moment: float) -> None:
    """Wait for a moment, in seconds since the epoch."""
    time.sleep(max(0.0, moment - time.time()))


def table(ours: Figures, theirs: Figures, period: float) -> str:
    """Return a Markdown table of both and their ratio."""
    rows: list[tuple[str, Callable[[Figures], Sequence[float]]]] = [
        ("noticed after, s", lambda figures: figures.noticed),
        ("training again after, s", lambda figures: [item.again for item in figures.recoveries]),
        ("the next new step after, s", lambda figures: [item.new for item in figures.recoveries]),
        ("steps computed again", lambda figures: [item.repeated for item in figures.recoveries]),
        ("work lost for each kill, s", lambda figures: figures.lost),
        (f"throughput kept with a kill every {period:g} s", lambda figures: [1 - lost / period for lost in figures.lost]),
        ("… with a kill a minute", lambda figures: [1 - lost / 60 for lost in figures.lost]),
        ("interrupt to prompt, s", lambda figures: figures.prompt),
    ]
    lines = ["| | `%%distribute` | torchrun | ratio |", "|---|---|---|---|"]
    for name, of in rows:
        mine, other = of(ours), of(theirs)
        ratios = [a / b for a, b in zip(mine, other, strict=True) if b]
        lines.append(f"| {name} | {spread(mine)} | {spread(other)} | {spread(ratios) if ratios else ''} |")
    return "\n".join(lines)


def main() -> None:
    """Run both by turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3, help="in each round (default: 3)")
    parser.add_argument("--period", type=float, default=30, help="seconds from kill to kill (default: 30)")
    parser.add_argument("--interrupts", type=int, default=5, help="besides those that end a round (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one round with two kills, 15 s apart, and one interrupt more")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.kills, options.period, options.interrupts = 1, 2, 15.0, 1
    ours, theirs = Figures(), Figures()
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        pairs: list[tuple[DataParallelTraining, Figures]] = [(Cell(folders[0]), ours)]
        stack.callback(pairs[0][0].close)
        pairs.append((Script(folders[1]), theirs))
        stack.callback(pairs[1][0].close)
        for index in range(options.rounds):
            for training, figures in pairs:
                training.disturb(options.kills, options.period, figures)
            print(f"round {index + 1} of {options.rounds}: {[round(figures.lost[-1], 2) for _, figures in pairs]} s lost", flush=True)
        for _ in range(options.interrupts):
            for training, figures in pairs:
                training.started()
                figures.prompt.append(training.timed_interrupt())
    print(f"\n{statistics.median(os.getloadavg()):.1f} processes at work or waiting\n\n{table(ours, theirs, options.period)}")


if __name__ == "__main__":
    main()
