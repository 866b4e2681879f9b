"""Two hours of a notebook in which everything goes wrong: results to the bit, and memory that stays flat.

A notebook in a real JupyterLab in Chromium runs cells of four kinds on two and on three engines in turns. An engine is killed every
minute, every tenth cell ends in an error, and the page is reloaded every few minutes, at moments that are drawn. What each cell leaves is
compared, bit by bit, with what it left undisturbed. The memory of every kind of process is noted once a minute: the table says by how much
its median over the last quarter is above that from the tenth minute to the end of the first quarter.

    python -m bench.soak [--minutes 120] [--kill-every 60] [--seed 0] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import expect, sync_playwright

from tests.browser.conftest import ARGUMENTS, NAMES
from tests.browser.lab import Lab
from tests.browser.server import Server
from tests.notebook.kernel import Cell, Notebook

from .report import machine

RESULTS = Path(__file__).parent / "results" / "soak.md"
ENGINES = (2, 3)
CELLS_IN_A_ROW = 20
"""Cells on one cluster before another one is started."""
ERROR_EVERY = 10
RELOAD_EVERY = 240.0  # seconds, on average
PATIENCE = 10 * 60.0
"""Seconds that the page may take to be there again: other programs may be busy meanwhile, and what is looked at are results."""
SETTLED = 10 * 60.0
"""Seconds after which memory is to be flat."""
UNIT = 1 << 20

SETUP = """
%load_ext jupyter_dtrain
get_ipython().enable_tip = False  # IPython draws one from Python's random stream whenever a page asks what kernel this is
import hashlib, random, time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, IterableDataset

def bits(*states):
    found = hashlib.sha256()
    def add(value):
        if isinstance(value, torch.Tensor):
            found.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            [add(part) for item in sorted(value.items(), key=str) for part in item]
        elif isinstance(value, (list, tuple)):
            [add(part) for part in value]
        else:
            found.update(repr(value).encode())
    add(states)
    add([torch.rand(2), random.random(), float(np.random.rand())])
    return found.hexdigest()

class Rows(IterableDataset):
    def __iter__(self):
        for row in range(960):
            yield torch.tensor([row % 7, row % 3, row % 11, 1.0]), float(row % 5)

def make():
    global model, optimizer, other, critic, loader, seen, stay
    torch.manual_seed(0); np.random.seed(0); random.seed(0)
    seen = []
    def stay():
        time.sleep(0.01)  # a step of a model that is worth several engines
"""

KINDS = {
    "classifier": (
        """
make()
x = torch.randn(960, 24)
model = nn.Sequential(nn.Linear(24, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x, x.argmax(1) % 4), batch_size=24, shuffle=True)
""",
        """
for epoch in range(12):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        stay()
    {error}
""",
        "bits(model.state_dict(), optimizer.state_dict()['state'], seen)",
    ),
    "two models": (
        """
make()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 6))
critic = nn.Sequential(nn.Linear(6, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optimizer, other = torch.optim.Adam(model.parameters(), 1e-3), torch.optim.RMSprop(critic.parameters(), 1e-3)
loader = DataLoader(TensorDataset(torch.randn(720, 6)), batch_size=24, shuffle=True, drop_last=True)
""",
        """
for epoch in range(10):
    for (real,) in loader:
        made = model(torch.randn(len(real), 8))
        other.zero_grad()
        (F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()).backward()
        other.step()
        optimizer.zero_grad()
        loss = F.softplus(-critic(made)).mean()
        loss.backward()
        optimizer.step()
        stay()
    seen.append(loss.item())
    {error}
""",
        "bits(model.state_dict(), critic.state_dict(), optimizer.state_dict()['state'], seen)",
    ),
    "stream with workers": (
        """
make()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
loader = DataLoader(Rows(), batch_size=12, num_workers=1)
""",
        """
for epoch in range(4):
    for row, target in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(row).squeeze(1), target.float())
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        stay()
    {error}
""",
        "bits(model.state_dict(), optimizer.state_dict()['state'], seen)",
    ),
    "sequences": (
        """
make()
model = nn.ModuleDict(dict(embed=nn.Embedding(32, 24), rnn=nn.LSTM(24, 48, batch_first=True), head=nn.Linear(48, 32)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(TensorDataset(torch.randint(32, (480, 17))), batch_size=24, shuffle=True)
""",
        """
for epoch in range(8):
    for (text,) in loader:
        states, _ = model["rnn"](model["embed"](text[:, :-1]))
        loss = F.cross_entropy(model["head"](states).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen.append(loss.item())
        stay()
    {error}
""",
        "bits(model.state_dict(), optimizer.state_dict()['state'], seen)",
    ),
}
ERROR = "if epoch == 1: raise RuntimeError('as it happens')"


class Attached(Notebook):
    """The kernel of a notebook that a page has open, told what to do by a client of its own: a page that is reloaded tells nothing."""

    def __init__(self, connection_file: Path, pid: int) -> None:
        self.client = BlockingKernelClient(connection_file=str(connection_file))
        self.client.load_connection_file()
        self.client.start_channels()
        self.manager = SimpleNamespace(is_alive=lambda: psutil.pid_exists(pid), provisioner=None)  # type: ignore[assignment]
        self.folder = connection_file.parent
        self._listen()
        self.meanwhile: Any = lambda: None

    def _receive(self) -> None:
        super()._receive()
        self.others.clear()
        self.meanwhile()

    def forget(self) -> None:
        """Let go of the cells that have ended."""
        self.cells = {number: cell for number, cell in self.cells.items() if cell.running}


@dataclass
class Soak:
    """What is done to the notebook while its cells run, and what has been seen.

    Attributes
    ----------
    counts : Counter
        How often what happened.
    memory : dict of str to list of (float, float)
        By kind of process: seconds since the beginning, MiB of the largest of its kind.
    """

    lab: Lab
    notebook: Attached
    kernel: psutil.Process
    browser: psutil.Process
    draw: random.Random
    kill_every: float
    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._kill_at = self.began + self.kill_every
        self._reload_at = self.began + RELOAD_EVERY
        self._look_at = self.began

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def meanwhile(self) -> None:
        """Do what is due. Called ten times a second."""
        now = time.monotonic()
        if now > self._look_at:
            self._look_at = now + 60
            for kind, size in measured(self.kernel, self.browser).items():
                self.memory[kind].append((self.seconds, size / UNIT))
        if now > self._kill_at:
            self._kill_at += self.kill_every
            if engines := processes(self.kernel)["engine"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.draw.choice(engines).send_signal(signal.SIGKILL)
                    self.counts["engines killed"] += 1
        if now > self._reload_at:
            self._reload_at = now + self.draw.uniform(0.5, 1.5) * RELOAD_EVERY
            self.lab.page.reload()
            self.lab.wait_until_ready()
            self.lab.open_sidebar()
            self.counts["reloads of the page"] += 1

    def run(self, kind: str, engines: int, *, error: bool = False) -> str | None:
        """Run a cell; return the bits that it left, ``None`` where it was to fail."""
        before, cell, result = KINDS[kind]
        self.notebook.run(before)
        ran = self.notebook.finish(self.notebook.start(f"%%distribute --engines {engines}\n{cell.format(error=ERROR if error else '')}"))
        self.counts["cells"] += 1
        self.notebook.forget()
        if error:
            self._expect(not ran.ok and ran.error == ("RuntimeError", "as it happens"), kind, ran)
            self.counts["cells that failed, as they were to"] += 1
            return None
        self._expect(ran.ok, kind, ran)
        return str(self.notebook.value(result)) if ran.ok else None

    def _expect(self, right: bool, kind: str, cell: Cell) -> None:
        if not right:
            said = cell.error if cell.contents("error") else "no error"
            self.note(f"{kind}, after {self.seconds:.0f} s: {said}\n{cell.stderr[-2000:]}")

    def note(self, wrong: str) -> None:
        """Note something that is not as it is to be."""
        self.wrong.append(wrong)
        print(wrong, flush=True)


def processes(kernel: psutil.Process) -> dict[str, list[psutil.Process]]:
    """Return the kernel's cluster by kind. Engines are forked from the template and look like it; it is the oldest of them."""
    found: dict[str, list[psutil.Process]] = {"guard": [], "controller": [], "template": [], "engine": []}
    alike = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for guard in (child for child in kernel.children() if any(part.endswith("cluster/guard.py") for part in child.cmdline())):
            found["guard"].append(guard)
            for child in guard.children():
                command = " ".join(child.cmdline())
                if "controller_app" in command:
                    found["controller"].append(child)
                elif "jupyter_dtrain.cluster" in command:
                    alike.append(child)
    alike.sort(key=lambda process: process.create_time())
    found["template"], found["engine"] = alike[:1], alike[1:]
    return found


def measured(kernel: psutil.Process, browser: psutil.Process) -> dict[str, float]:
    """Return the bytes of each kind of process, of the largest where there are several, and of what is in shared memory."""
    kinds = {"kernel": [kernel], **processes(kernel)}
    sizes: dict[str, float] = {}
    for kind, members in kinds.items():
        with contextlib.suppress(psutil.Error):
            sizes[kind] = max((process.memory_full_info().uss for process in members), default=0)
    with contextlib.suppress(psutil.Error):
        sizes["browser, all of it"] = sum(process.memory_full_info().uss for process in (browser, *browser.children(recursive=True)))
    sizes["/dev/shm"] = shutil.disk_usage("/dev/shm").used
    return {kind: size for kind, size in sizes.items() if size or kind == "/dev/shm"}


@contextlib.contextmanager
def soaked(options: argparse.Namespace) -> Iterator[Soak]:
    """Open a notebook in a page, and attach to its kernel; leave nothing behind."""
    expect.set_options(timeout=PATIENCE * 1000)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, sync_playwright() as playwright:
        server = Server(Path(folder), checkout=Path(__file__).parents[1])
        try:
            executable = next(filter(None, map(shutil.which, NAMES)), None)
            page = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS).new_page(viewport={"width": 1280, "height": 1000})
            page.set_default_timeout(PATIENCE * 1000)
            (server.notebooks / "soak").mkdir()
            lab = Lab(page, server.url, server.token, server.notebooks / "soak" / "soak.ipynb", [SETUP])
            lab.run(0)
            lab.open_sidebar()
            (session,) = server.request("GET", "sessions")
            file = Path(folder) / "runtime" / f"kernel-{session['kernel']['id']}.json"
            pid = next(process.pid for process in server.descendants() if str(file) in process.cmdline())
            browser = next(child for child in psutil.Process().children(recursive=True) if child.name().startswith("chrom"))
            notebook = Attached(file, pid)
            yield Soak(lab, notebook, psutil.Process(pid), browser, random.Random(options.seed), options.kill_every)
            notebook.client.stop_channels()
        finally:
            server.shut_down_kernels()
            server.stop()


def soak(watched: Soak, minutes: float) -> None:
    """Run cells until the time is over."""
    expected: dict[tuple[str, int], str | None] = {}
    for engines in ENGINES:
        watched.notebook.run(f"%distribute stop\n%distribute start -n {engines} --device cpu")
        expected |= {(kind, engines): watched.run(kind, engines) for kind in KINDS}
    watched.counts.clear()
    watched.began = time.monotonic()
    watched.__post_init__()
    watched.notebook.meanwhile = watched.meanwhile
    while watched.seconds < 60 * minutes:
        number = watched.counts["cells"]
        engines = ENGINES[number // CELLS_IN_A_ROW % len(ENGINES)]
        if number % CELLS_IN_A_ROW == 0:
            watched.notebook.run(f"%distribute stop\n%distribute start -n {engines} --device cpu")
        kind = watched.draw.choice(list(KINDS))
        error = number % ERROR_EVERY == ERROR_EVERY - 1
        found = watched.run(kind, engines, error=error)
        if found is not None and found != expected[kind, engines]:
            watched.note(f"{kind} on {engines} engines, after {watched.seconds:.0f} s: other bits")
        if number % 10 == 0:
            print(f"{watched.seconds:6.0f} s  {json.dumps(watched.counts)}  wrong: {len(watched.wrong)}", flush=True)
    watched.notebook.meanwhile = lambda: None


def report(watched: Soak, minutes: float) -> str:
    """Return the figures as Markdown."""
    counts = "\n".join(f"| {what} | {number} |" for what, number in watched.counts.items())
    rows = []
    end = 60 * minutes
    for kind, noted in watched.memory.items():
        early = [size for at, size in noted if min(SETTLED, end / 12) <= at < end / 4]
        late = [size for at, size in noted if at >= 3 * end / 4]
        if early and late:
            first, last = statistics.median(early), statistics.median(late)
            rows.append(f"| {kind} | {first:.0f} | {last:.0f} | {last - first:+.0f} | {max(size for _, size in noted):.0f} |")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"""# Soak

What `python -m bench.soak --minutes {minutes:g} --write` found on {machine()}; load of the machine at the end {load}.

| | |
|---|---|
{counts}
| results that differ in a bit, or ended otherwise than they were to | {len(watched.wrong)} |

MiB that a process has for itself (the largest of its kind): medians over the first quarter, its first minutes left out, and over the last.

| | first quarter | last quarter | growth | greatest |
|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> None:
    """Soak, and print the figures; the status is 1 where a result was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--kill-every", type=float, default=60, help="seconds between two engines that are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} as well")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs behind it ignore interrupts
    with soaked(options) as watched:
        try:
            soak(watched, options.minutes)
        except KeyboardInterrupt:
            print(f"interrupted after {watched.seconds:.0f} s", flush=True)
        except (PlaywrightError, AssertionError) as error:
            watched.note(f"broken off: {error!r}"[:4000])
        text = report(watched, min(options.minutes, watched.seconds / 60))
    print(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")
    sys.exit(bool(watched.wrong))


if __name__ == "__main__":
    main()
