"""What shares by speed are worth: steps a second with one engine of two at half speed, ``--balance auto`` against equal shares.

The engine is limited by stopping it for half of the time, in slices that are short beside a step, which halves its speed on a machine
that has a core for each engine: with equal shares a step takes twice as long, with shares of a third and two thirds one and a third
times, so 1.5 is what can be reached. On one that is busy with other things ``--slow reading`` tells more: there each sample takes
some time to be read, on one engine twice as much, and nothing is stopped. Equal shares and others take turns on the same
engines, and the steps of the second half of each cell count, when shares have settled.

    python -m bench.balance [--rounds 5] [--slow reading]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from .contenders import Kernel
from .costs import CLUSTER
from .report import spread

STEPS = 120
SLICE = 0.005  # seconds

MODEL = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(1024 * 100, 256), torch.randint(10, (1024 * 100,)))
"""
READING = """
class Slow(TensorDataset):
    def __getitems__(self, indices):
        import torch.distributed as dist
        time.sleep(len(indices) * 5e-4 * (1 + dist.get_rank()))
        return [self[index] for index in indices]
data = Slow(*data.tensors)
"""
CELL = """%%distribute --engines 2 --device cpu --balance {balance}
loader = DataLoader(data, batch_size={batch}, shuffle=True)
step, times = 0, []
while step < {steps}:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if is_main():
            times.append(time.time())
        if step == {steps}:
            break
"""


@contextlib.contextmanager
def throttled(pid: int, *, on: float = SLICE, off: float = SLICE) -> Iterator[None]:
    """Let a process run for `on` of each `on` + `off` seconds only, wherever it is: in its own work, and where it waits for others."""
    over = threading.Event()

    def limit() -> None:
        with contextlib.suppress(ProcessLookupError):  # what it was throttled for fails of itself
            while not over.wait(on):
                os.kill(pid, signal.SIGSTOP)
                over.wait(off)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=limit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rate(kernel: Kernel, balance: str, *, slow: str) -> float:
    """Return the steps a second of the second half of the cell."""
    kernel.run(MODEL + (READING if slow == "reading" else ""))
    engine = int(kernel.run(f"print({CLUSTER}.engines[0].pid)"))
    with throttled(engine) if slow == "engine" else contextlib.nullcontext():
        kernel.run(CELL.format(balance=balance, steps=STEPS, batch=64 if slow == "reading" else 4096))
    times = json.loads(kernel.run("print(times)"))
    return (STEPS - STEPS // 2) / float(times[-1] - times[STEPS // 2 - 1])


def main() -> None:
    """Run both by turns and print what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow", choices=["engine", "reading"], default="engine")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"auto": [], "off": []}
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Kernel(Path(name))) as kernel:
        kernel.run("%load_ext jupyter_dtrain\n%distribute start -n 2 --device cpu\nfrom jupyter_dtrain import is_main\n" + MODEL)
        kernel.run("%%distribute --engines 2 --device cpu\n1")
        for index in range(options.rounds):
            for balance, found in rates.items():
                found.append(rate(kernel, balance, slow=options.slow))
            print(f"round {index + 1} of {options.rounds}", flush=True)
    for balance, found in rates.items():
        print(f"--balance {balance:5} {spread(found)} steps/s")
    print(f"ratio           {spread([auto / off for auto, off in zip(rates['auto'], rates['off'], strict=True)])}")


if __name__ == "__main__":
    main()
