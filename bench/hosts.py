"""How long a start takes until all engines answer: one on each of two hosts by SSH, and two on the notebook's own host, in turns.

The hosts are those of the tests, made of Linux's namespaces by root: they share this machine's cores, where others have their own. So the
processor's time, of the notebook's process and all that it has started anywhere, tells more on a machine with few cores or with other work.

    python -m bench.hosts [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import time

import psutil

from tests.hosts.conftest import ROOT, HostNotebook
from tests.hosts.virtual_hosts import VirtualHosts, why_not
from tests.notebook.conftest import IMPORTS

from .report import spread

STARTS = {
    "two hosts, by SSH": "%distribute start --hosts h1:1,h2:1",
    "this host": "%distribute start -n 2 --device cpu",
}
CELL = """%%distribute
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""
SETUP = """
loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randn(48, 1)), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters())
"""


def processor_time() -> float:
    """Return the seconds that this process's descendants have computed, and those of them that have ended and were waited for."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    """Start in turns, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in STARTS}
    with VirtualHosts(3, shared=[ROOT]) as lab, contextlib.closing(HostNotebook(lab[0], lab, "/root")) as notebook:
        notebook.run(IMPORTS)
        for index in range(options.rounds):
            for name, line in STARTS.items():
                began, computed = time.monotonic(), processor_time()
                notebook.run(line)
                started, computed = time.monotonic() - began, processor_time() - computed
                notebook.run(SETUP)
                began = time.monotonic()
                notebook.run(CELL)
                found[name].append((started, computed, time.monotonic() - began))
                notebook.run("%distribute stop")
            print(f"round {index + 1} of {options.rounds}", flush=True)
    for name, rounds in found.items():
        start, processor, cell = (spread(values) for values in zip(*rounds, strict=True))
        print(f"{name:18} {start} s, {processor} s of processor time; its first cell {cell} s")


if __name__ == "__main__":
    main()
