"""What several hosts cost on slow links: ``python -m bench.slow_links [--parts scaling saving snapshots] [--rounds 3]``.

The hosts are those of the tests, and their links take 100 Mbit/s and 5 ms one way (``shaped_links.py``). They share this machine's
cores, so what an engine computes is a wait of known length, in each layer's forward and backward pass: a third and two thirds of a step.
How long that is says ``--exchange``, the part of it that a step's gradients take on the link of each of three hosts. Engines and the
switch go before all other programs of the machine, so that these make them no slower.

- *scaling*: a step on three hosts, beside one on one host, without snapshots; each engine has as many samples in either.
- *saving*: `--compress` and `--sync-every` on three hosts, beside none.
- *snapshots*: the same cell with snapshots and without, on three hosts.

What is compared takes turns, and ratios are within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from itertools import pairwise
from typing import NamedTuple

from tests.hosts.conftest import ROOT, HostNotebook
from tests.hosts.virtual_hosts import VirtualHosts, why_not
from tests.notebook import kernel
from tests.notebook.conftest import IMPORTS

from .report import spread
from .shaped_links import ShapedLinks

SAMPLES = 8  # of each engine in a step
BEGINNING = 4  # steps that do not count
ON_ONE, ON_ALL = "h1:{engines}", "h1:{engines},h2:{engines},h3:{engines}"
SETUP = """
import json, os, statistics, time, jupyter_dtrain
torch.set_default_dtype(torch.float32)
from jupyter_dtrain.checkpoint.snapshot_index import SnapshotKeeper
due = SnapshotKeeper.due
class Waiting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None
class Layer(nn.Module):
    def __init__(self, width, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(width, width), seconds
    def forward(self, x):
        return Waiting.apply(x + F.relu(self.linear(x)), self.seconds)
class Noting(nn.Module):  # in a model's call each engine reads its own clock, and waits for no other
    def forward(self, x):
        with open("/proc/net/dev") as file:
            numbers = next(line for line in file if "eth0:" in line).partition(":")[2].split()
        noted.append((time.perf_counter(), int(numbers[8])))
        return x
"""
JOB = """
torch.manual_seed(0)
noted = []
model = nn.Sequential(Noting(), *[Layer({width}, {seconds}) for _ in range({layers})])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
drawn = torch.randn({samples} * {steps}, {width})
loader = DataLoader(TensorDataset(drawn, drawn.flip(1)), batch_size={samples})
SnapshotKeeper.due = {due}
"""
CELL = """%%distribute --view off {options}
for task in os.listdir("/proc/self/task"):
    os.sched_setscheduler(int(task), os.SCHED_RR, os.sched_param(1))
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
of_ranks = jupyter_dtrain.gather(noted)
"""
READ = "print(json.dumps(of_ranks))"


class Steps(NamedTuple):
    """Of one cell: the median and the mean of the seconds of a step, and the mean of the megabytes that a host has sent in one."""

    median: float
    mean: float
    sent: float


class Bench:
    """Cells on hosts whose links are shaped while they run."""

    def __init__(self, notebook: HostNotebook, links: ShapedLinks, options: argparse.Namespace) -> None:
        self._notebook, self._links, self._options = notebook, links, options
        self._hosts = ""
        size = 4 * options.width * (options.width + 1) * options.layers
        self.exchange = 2 * 2 / 3 * size / options.rate
        self.waits = self.exchange / options.exchange
        notebook.run(IMPORTS + SETUP)

    def steps(self, hosts: str, *, options: str = "", snapshots: bool = True, number: int | None = None) -> Steps:
        """Run the cell on `hosts`, with `options`."""
        given = self._options
        hosts, engines = hosts.format(engines=given.engines), given.engines * (1 + hosts.count(","))
        self._links.shape()
        if hosts != self._hosts:
            self._notebook.run(f"%distribute stop\n%distribute start --hosts {hosts}")
            self._hosts = hosts
        self._notebook.run(
            JOB.format(
                width=given.width,
                layers=given.layers,
                seconds=self.waits / 3 / given.layers,
                samples=SAMPLES * engines,
                steps=number or given.steps,
                due="due" if snapshots else "lambda *_, **__: None",
            )
        )
        self._links.shape(given.rate, given.delay)
        self._notebook.run(CELL.format(options=options))
        of_ranks = [of_one[BEGINNING:] for of_one in json.loads(self._notebook.run(READ).stdout)]
        steps = [end - begin for (begin, _), (end, _) in pairwise(of_ranks[0])]
        sent = [(of_one[-1][1] - of_one[0][1]) / len(steps) / 1e6 for of_one in of_ranks]
        return Steps(statistics.median(steps), statistics.mean(steps), max(sent))


def scaling(bench: Bench, rounds: int) -> None:
    """Print a step on one host and on three."""
    found = [tuple(bench.steps(hosts, snapshots=False) for hosts in (ON_ONE, ON_ALL)) for _ in range(rounds)]
    one, three = ([steps.median for steps in of] for of in zip(*found, strict=True))
    print(f"scaling: one host {spread(one)} s, three {spread(three)} s; {spread([steps.sent for _, steps in found])} MB sent by a host")
    print(f"  {spread([a / b for a, b in zip(one, three, strict=True)])} × the steps of one host in the same time")


def saving(bench: Bench, rounds: int) -> None:
    """Print a step with what exchanges less."""
    ways = ("", "--compress bf16", "--compress fp16", "--sync-every 4", "--sync-every 16")
    found = [[bench.steps(ON_ALL, options=way, number=BEGINNING + 48) for way in ways] for _ in range(rounds)]
    for way, steps in zip(ways, zip(*found, strict=True), strict=True):
        seconds = [one.mean for one in steps]
        print(
            f"saving: {way or 'as it is':16} {spread(seconds)} s, {spread([one.sent for one in steps])} MB sent by a host, "
            f"{spread([one.mean / of[0].mean for one, of in zip(steps, found, strict=True)])} × as it is"
        )


def snapshots(bench: Bench, rounds: int) -> None:
    """Print a step with snapshots and without."""
    found = [[bench.steps(ON_ALL, snapshots=are_taken, number=BEGINNING + 60) for are_taken in (False, True)] for _ in range(rounds)]
    without, taken = ([steps.mean for steps in of] for of in zip(*found, strict=True))
    ratios = [b / a for a, b in zip(without, taken, strict=True)]
    print(f"snapshots: {spread(without)} s without, {spread(taken)} s with, {spread(ratios)} ×")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_links", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=["scaling", "saving", "snapshots"], default=["scaling", "saving", "snapshots"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--engines", type=int, default=1, help="on each host")
    parser.add_argument("--exchange", type=float, default=0.25, help="part of a step's computing that its exchange takes (default: 0.25)")
    parser.add_argument("--rate", type=float, default=12.5e6, help="of a link, in bytes a second")
    parser.add_argument("--delay", type=float, default=0.005, help="of a link, one way, in seconds")
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    kernel.LIMIT = 1800.0
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(VirtualHosts(4, shared=[ROOT]))
        links = stack.enter_context(ShapedLinks(lab))
        bench = Bench(stack.enter_context(contextlib.closing(HostNotebook(lab[0], lab, "/root"))), links, options)
        size = 4 * options.width * (options.width + 1) * options.layers / 1e6
        print(f"{size:.1f} MB of gradients, {bench.exchange:.2f} s on a link; {bench.waits:.2f} s computed in a step")
        for part in options.parts:
            {"scaling": scaling, "saving": saving, "snapshots": snapshots}[part](bench, options.rounds)
        print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
