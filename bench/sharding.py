"""What an engine holds, and how long a step takes, with each strategy: ``python -m bench.sharding [--engines 2] [--rounds 3]``.

A model that parameters rule, under AdamW. The peak is of the process (``VmHWM``), above what it held before the cell, from the first step
on. Strategies take turns, each on new engines, as what these have used they keep; ratios are within a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from pathlib import Path

from .contenders import Kernel
from .report import spread

BASE = "auto"
SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
wide = nn.Sequential(*[layer for _ in range({layers}) for layer in (nn.Linear(1024, 1024), nn.GELU())])
updating = torch.optim.AdamW(wide.parameters(), lr=1e-3)
drawn = torch.randn(64 * {steps}, 1024)
loader = DataLoader(TensorDataset(drawn, drawn.flip(1)), batch_size=64)
"""
BEFORE = """%%distribute --engines {engines} --device cpu
from pathlib import Path
small = nn.Linear(64, 64)
nn.functional.mse_loss(small(torch.randn(8, 64)), torch.zeros(8, 64)).backward()
Path("/proc/self/clear_refs").write_text("5")
del small
"""
STEPPED = """%%distribute --engines {engines} --device cpu --strategy {strategy}
import statistics, time
from pathlib import Path
def of_process(name):
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0]) / 1024
held, whole = of_process("VmRSS"), []
for x, y in loader:
    begun = time.perf_counter()
    updating.zero_grad()
    nn.functional.mse_loss(wide(x), y).backward()
    updating.step()
    whole.append(time.perf_counter() - begun)
peaks = jupyter_dtrain.gather(of_process("VmHWM") - held)
stepping = statistics.median(whole[3:]) * 1e3
"""


def measured(folder: Path, strategy: str, *, engines: int, layers: int, steps: int) -> tuple[float, float]:
    """Return the largest peak of an engine in MiB, and the milliseconds of a step."""
    kernel = Kernel(folder)
    try:
        kernel.run(f"%load_ext jupyter_dtrain\nimport jupyter_dtrain, json\n%distribute start -n {engines} --device cpu")
        kernel.run(SETUP.format(layers=layers, steps=steps))
        kernel.run(BEFORE.format(engines=engines))
        kernel.run(STEPPED.format(engines=engines, strategy=strategy))
        peak, step = json.loads(kernel.run("print(json.dumps([max(peaks), stepping]))"))
    finally:
        kernel.close()
    return peak, step


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharding", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--layers", type=int, default=11, help="of 4 MiB each (default: 11)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {BASE: [], "zero1": [], "zero3": []}
    for number, (strategy, figures) in itertools.product(range(options.rounds), found.items()):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            figures.append(measured(Path(folder), strategy, engines=options.engines, layers=options.layers, steps=options.steps))
        print(f"round {number + 1}, {strategy}: {figures[-1][0]:.0f} MiB, {figures[-1][1]:.0f} ms", flush=True)
    print(f"{4 * options.layers} MiB of parameters on {options.engines} engines, load average {os.getloadavg()[0]:.1f}:")
    for column, what in enumerate(("peak above the start, MiB", "a step, ms")):
        for strategy, figures in found.items():
            of_round = [one[column] / base[column] for one, base in zip(figures, found[BASE], strict=True)]
            print(f"  {what}, {strategy}: {spread([one[column] for one in figures])}, {spread(of_round)} × {BASE}")


if __name__ == "__main__":
    main()
