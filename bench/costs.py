"""What it costs to start engines, to send a cell and its data, to keep checkpoints, and to watch: ``python -m bench.costs [--engines 4]``.

Each figure stands beside what it is measured against, taken in the same round: a copy of the data in memory, ``torch.save`` of the same
state, the same cell unwatched. A part that fails does not keep the others from being measured, and each prints when it is through.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil

from jupyter_dtrain.cluster.local import LocalCluster
from jupyter_dtrain.cluster_options import ClusterOptions

from .contenders import Kernel, Ours
from .jobs import DIGITS, IMPORTS, MADE, jobs
from .report import spread

CLUSTER = 'get_ipython().magics_manager.registry["DistributeMagics"].session.get().cluster'
DATA = "import torch\ndata = torch.randn({rows}, 1024)"
NUM_SENT = """
import jupyter_dtrain.elastic.job as work
sent, to_parcel = [], work.to_parcel
def noting(*args):
    parcel = to_parcel(*args)
    sent.append(parcel.num_bytes)
    return parcel
work.to_parcel = noting
"""
MODEL = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(1280, 512), torch.randint(10, (1280,)))
"""
TRAINING = """%%distribute --engines 2 --device cpu --checkpoint-every 10
stamps = []
for epoch in range(4):
    for x, y in DataLoader(data, batch_size=128):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        stamps.append(time.perf_counter())
"""
STEPPED = """%%distribute --engines 2 --device cpu --strategy {strategy}
import psutil, statistics, torch, time
from torch import nn
torch.manual_seed(0)
wide = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(1024, 1024), nn.GELU())])
updating = torch.optim.Adam(wide.parameters(), lr=1e-3)
drawn, took, whole = torch.randn(16, 1024), [], []
for step in range(20):
    begun = time.perf_counter()
    updating.zero_grad()
    nn.functional.mse_loss(wide(drawn), drawn).backward()
    stepped = time.perf_counter()
    updating.step()
    took.append(time.perf_counter() - stepped)
    whole.append(time.perf_counter() - begun)
used = psutil.Process().memory_full_info()
private, shared = jupyter_dtrain.gather(used.uss), jupyter_dtrain.gather(used.pss)
stepping, all_of_it, num_parameters = statistics.median(took[5:]), statistics.median(whole[5:]), sum(p.numel() for p in wide.parameters())
del wide, updating
"""
WATCHED = """
import time
began = time.perf_counter(), time.process_time()
for x, y in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), {steps}):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
took = time.perf_counter() - began[0], time.process_time() - began[1]
"""
SAVED = """
began = time.perf_counter()
torch.save((model.state_dict(), optimizer.state_dict()), "state.pt")
saved = time.perf_counter() - began
import numpy as np
kept = [*model.parameters(), *(p.grad for p in model.parameters())]
kept += [tensor for state in optimizer.state.values() for tensor in state.values()]
state = [tensor.detach().numpy() for tensor in kept if tensor is not None]
copies = [np.ones_like(array) for array in state]
began = time.perf_counter()
for copy, array in zip(copies, state):
    copy[...] = array
print(saved, time.perf_counter() - began)
"""


def timed(kernel: Kernel, code: str) -> float:
    """Return the seconds that a cell takes."""
    began = time.perf_counter()
    kernel.run(code)
    return time.perf_counter() - began


def shipping(folder: Path, engines: int, rows: int, rounds: int) -> None:
    """Print what a cell costs that does nothing, and one that uses a large data set."""
    kernel = Kernel(folder)
    try:
        kernel.run("%load_ext jupyter_dtrain\n" + DATA.format(rows=rows) + NUM_SENT)
        first_line = f"%%distribute --engines {engines} --device cpu\n"
        kernel.run(first_line + "pass")
        pids = json.loads(kernel.run(f"import json; print(json.dumps([engine.pid for engine in {CLUSTER}.engines]))"))

        def memory() -> int:
            return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)

        nothing, copies, ships, reruns = [], [], [], []
        before = memory()
        for _ in range(rounds):
            nothing.append(timed(kernel, first_line + "pass"))
            copies.append(timed(kernel, "copy = data.clone()"))
            kernel.run("del copy\ndata += 1")
            ships.append(timed(kernel, first_line + "len(data)"))
            reruns.append(timed(kernel, first_line + "len(data)"))
        num_bytes = int(kernel.run("print(sent[-1])"))
        read = kernel.client.execute(first_line + "import time\nread = data.sum()\ntime.sleep(3)")
        most = before
        while not _answered(kernel, read):
            most = max(most, memory())
    finally:
        kernel.close()
    size = rows * 1024 * 4
    ratios = [ship / copy for ship, copy in zip(ships, copies, strict=True)]
    print(f"a cell that does nothing: {spread([value * 1e3 for value in nothing])} ms")
    print(f"{size / 2**30:.2f} GiB to {engines} engines: {spread(ships)} s, {spread(ratios)} × a copy in memory")
    print(f"the same again, unchanged: {spread([value * 1e3 for value in reruns])} ms, {num_bytes} bytes in the message")
    print(f"memory of {engines} engines that have read all of it: {(most - before) / 2**30:.2f} GiB above that before")


def _answered(kernel: Kernel, request: str) -> bool:
    """Return whether a cell that was sent is over; looks a few times a second."""
    try:
        reply = kernel.client.get_shell_msg(timeout=0.2)
    except queue.Empty:
        return False
    return bool(reply["parent_header"].get("msg_id") == request)


def starting(most: int) -> None:
    """Print how long clusters of many sizes take to be ready, with a straight line through it."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= most]
    took = []
    for size in sizes:
        began = time.perf_counter()
        cluster = LocalCluster.start(ClusterOptions(num_engines=size, device="cpu"))
        try:
            cluster.wait_warm(timedelta(minutes=2))
            took.append(time.perf_counter() - began)
        finally:
            cluster.stop()
    fit = statistics.linear_regression(sizes, took)
    points = ", ".join(f"{size}: {seconds:.1f}" for size, seconds in zip(sizes, took, strict=True))
    print(f"engines ready with torch, seconds by number: {points}; {fit.intercept:.1f} s + {fit.slope:.2f} s for each engine")


def checkpoints(folder: Path, rounds: int) -> None:
    """Print by how much steps with a checkpoint are longer, against writing the same state with ``torch.save``; and what one copy takes."""
    kernel = Kernel(folder)
    try:
        kernel.run("%load_ext jupyter_dtrain\n" + MODEL)
        ratios, stalls, copies = [], [], []
        for _ in range(rounds):
            kernel.run(TRAINING)
            stamps = json.loads(kernel.run("import json; print(json.dumps(stamps))"))
            steps = [after - before for before, after in itertools.pairwise(stamps)]
            usual = statistics.median(steps)
            stall = max(0.0, sum(step - usual for step in steps[9::10]) / len(steps[9::10]))
            stalls.append(stall * 1e3)
            saved, copied = map(float, kernel.run(SAVED).split())
            ratios.append(stall / saved)
            copies.append(copied / saved)
    finally:
        kernel.close()
    print(f"stall of a checkpoint: {spread(stalls)} ms, {spread(ratios)} × torch.save; a copy in memory: {spread(copies)} ×")


def optimizer(folder: Path, rounds: int) -> None:
    """Print what an engine holds, and how long a step of Adam takes, where its state is whole on each engine and where it is shared out."""
    kernel = Kernel(folder)
    measured: dict[str, list[tuple[float, ...]]] = {"auto": [], "zero1": []}
    try:
        kernel.run("%load_ext jupyter_dtrain\nimport jupyter_dtrain, json")
        for _, (strategy, found) in itertools.product(range(rounds), measured.items()):
            kernel.run("%distribute start -n 2 --device cpu")
            kernel.run(STEPPED.format(strategy=strategy))
            private, shared, step, whole = json.loads(kernel.run("print(json.dumps([private, shared, stepping, all_of_it]))"))
            found.append((max(private) / 2**20, max(shared) / 2**20, step * 1e3, whole * 1e3))
            kernel.run("%distribute stop")  # what engines have used they keep for the next cell
        num_parameters = int(kernel.run("print(num_parameters)"))
    finally:
        kernel.close()
    print(f"{num_parameters / 1e6:.1f} million parameters under Adam on 2 engines, with auto and zero1:")
    whats = ("an engine's private memory (MiB)", "its proportional memory (MiB)", "optimizer.step() (ms)", "a whole step (ms)")
    for column, what in enumerate(whats):
        auto, zero1 = ([figures[column] for figures in of] for of in measured.values())
        ratios = [other / one for one, other in zip(auto, zero1, strict=True)]
        print(f"{what}: {spread(auto)}, {spread(zero1)}, {spread(ratios)} ×")


def watching(folder: Path, rounds: int, steps: int) -> None:
    """Print by how much a cell of many small steps takes longer where its run is shown."""
    kernel = Kernel(folder)
    try:
        kernel.run("%load_ext jupyter_dtrain\n" + IMPORTS + DIGITS + MADE.format(batch_size=64))
        process = psutil.Process(kernel.process_id())

        def used() -> float:
            return sum(process.cpu_times()[:2])

        took: dict[str, list[tuple[float, float, float]]] = {"live": [], "off": []}
        for index in range(-1, rounds):
            for view, measured in took.items():
                before = used()
                kernel.run(f"%%distribute --engines 2 --device cpu --view {view}\n" + WATCHED.format(steps=steps))
                wall, engine = json.loads(kernel.run("import json; print(json.dumps(took))"))
                if index >= 0:
                    measured.append((wall / steps * 1e3, engine / steps * 1e3, (used() - before) / steps * 1e3))
    finally:
        kernel.close()
    for what, column in (
        ("time of a step", 0),
        ("an engine's processor time of a step", 1),
        ("the notebook's processor time of a step", 2),
    ):
        live, off = ([figures[column] for figures in took[view]] for view in ("live", "off"))
        ratios = [one / other for one, other in zip(live, off, strict=True)]
        print(f"{what}, shown live and not at all: {spread(live)} ms, {spread(off)} ms, {spread(ratios)} ×")


def checking(folder: Path, rounds: int) -> None:
    """Print by how much the jobs of ``python -m bench`` take longer where the run checks itself."""
    ours = Ours(folder)
    try:
        digits, *others = jobs(quick=False)
        for job in (digits, *others, replace(digits, name="digits CNN for longer", epochs=20 * digits.epochs)):
            took: dict[str, list[tuple[float, float, float]]] = {"off": [], "first": [], "auto": []}
            for index, (verify, measured) in itertools.product(range(-1, rounds), took.items()):
                ours.prepare(job)
                ours.above = f"{Ours.above.rstrip()} --verify {verify}\n"
                timing = ours.measure(job)
                if index >= 0:
                    measured.append((timing.first_step, 1 / timing.rate, timing.whole))
            for column, what in enumerate(("until the first step's end", "a step after it", "the cell")):
                off, *checked = ([figures[column] for figures in of] for of in took.values())
                ratios = ", ".join(spread([one / other for one, other in zip(of, off, strict=True)]) + " ×" for of in checked)
                print(f"{job.name}, {job.epochs * job.steps} steps: {what} {spread(off)} s; with `first` and `auto` {ratios}", flush=True)
    finally:
        ours.close()


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.costs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--most", type=int, default=16, help="engines of the largest cluster that is started (default: 16)")
    parser.add_argument("--rows", type=int, default=2**18, help="of 4 kB each in the data set (default: 1 GiB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000, help="of the cell that is watched (default: 1000)")
    parser.add_argument(
        "--part", action="append", default=[], help="shipping, starting, checkpoints, optimizer, watching or checking; may be given again"
    )
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], None]] = {
        "shipping": lambda folder: shipping(folder, options.engines, options.rows, options.rounds),
        "starting": lambda _: starting(options.most),
        "checkpoints": lambda folder: checkpoints(folder, options.rounds),
        "optimizer": lambda folder: optimizer(folder, options.rounds),
        "watching": lambda folder: watching(folder, options.rounds, options.steps),
        "checking": lambda folder: checking(folder, options.rounds),
    }
    for name in options.part or parts:
        print(f"-- {name}, load average {os.getloadavg()[0]:.1f}", flush=True)
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                parts[name](Path(folder))
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {str(error)[-500:]}", flush=True)


if __name__ == "__main__":
    main()
