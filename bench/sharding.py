"""What an engine holds, and how long a step takes, with each strategy: ``python -m bench.sharding [--engines 2] [--size 44] [--rounds 3]``.

A model that parameters rule, under AdamW, or with ``--blocks 12`` a transformer that activations rule; options of the cell may follow the
name of a strategy (``--strategies zero1 "auto --checkpoint-activations"``). Memory is what the system counts for the process (``VmHWM``),
above what it was at the end of a cell that has used the same parts of PyTorch: so what arrives and its sharding count, and so do the
exchange buffers, which all engines of the host map (4 MiB for each engine). What a snapshot has written into the folder of shared memory
counts for no process, and is as much with each strategy. Strategies take turns, each on new engines, as what these have used they keep;
ratios are within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from .contenders import Kernel
from .report import spread

BASE = "auto"
LIMIT = 1800.0  # seconds of a cell
SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
{model}
updating = torch.optim.AdamW(wide.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(drawn, drawn.flip(1)), batch_size=64)
def of_process(name):
    from pathlib import Path
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0]) / 1024
def forget_peak():
    from pathlib import Path
    Path("/proc/self/clear_refs").write_text("5")
"""
LINEAR = """
wide = nn.Sequential(*[layer for _ in range({layers}) for layer in (nn.Linear({width}, {width}), nn.GELU())])
drawn = torch.randn(64 * {steps}, {width})
"""
TRANSFORMER = """
layer = nn.TransformerEncoderLayer({width}, 4, 4 * {width}, batch_first=True)
wide = nn.TransformerEncoder(layer, {layers}, enable_nested_tensor=False)
drawn = torch.randn(64 * {steps}, 64, {width})
"""
BEFORE = """%%distribute --engines {engines} --device cpu
small = nn.Linear(64, 64)
nn.functional.mse_loss(small(torch.randn(8, 64)), torch.zeros(8, 64)).backward()
del small
held = jupyter_dtrain.gather(of_process("VmRSS"))
forget_peak()
"""
STEPPED = """%%distribute --engines {engines} --device cpu --strategy {strategy} --checkpoint-every {every}
import statistics, time
whole, of_steps = [], []
for x, y in loader:
    begun = time.perf_counter()
    updating.zero_grad()
    nn.functional.mse_loss(wide(x), y).backward()
    updating.step()
    whole.append(time.perf_counter() - begun)
    of_steps.append(of_process("VmHWM"))
    forget_peak()
peaks = jupyter_dtrain.gather(of_steps)
stepping = statistics.median(whole[3:]) * 1e3
"""
READ = """
above = [[step - base for step in steps] for steps, base in zip(peaks, held)]
print(json.dumps([*(max(map(which, above)) for which in (lambda of: of[0], max, lambda of: of[-1])), stepping]))
"""


class Figures(NamedTuple):
    """What one run has shown: memory in MiB, of the engine that takes most, and milliseconds."""

    first: float
    largest: float
    last: float
    step: float


WHAT = ("peak up to the end of the first step, MiB", "largest peak, with snapshots, MiB", "peak of the last step, MiB", "a step, ms")


def measured(folder: Path, strategy: str, *, engines: int, model: str, steps: int) -> Figures:
    """Run one cell on new engines. `strategy` is its name, and other options of the cell."""
    kernel = Kernel(folder)
    try:
        kernel.run(f"%load_ext jupyter_dtrain\nimport jupyter_dtrain, json\n%distribute start -n {engines} --device cpu")
        kernel.run(SETUP.format(model=model, steps=steps))
        kernel.run(BEFORE.format(engines=engines))
        kernel.run(STEPPED.format(engines=engines, strategy=strategy, every=steps // 2), LIMIT)
        return Figures(*json.loads(kernel.run(READ)))
    finally:
        kernel.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharding", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--size", type=int, default=44, help="MiB of parameters (default: 44)")
    parser.add_argument("--width", type=int, default=1024, help="of the layers (default: 1024, which is 4 MiB each)")
    parser.add_argument("--blocks", type=int, default=0, help="a transformer of so many, on sequences of 64, in the place of linear layers")
    parser.add_argument("--strategies", nargs="+", default=["zero1", "zero3"], help="beside auto")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    layers = options.blocks or max(1, round(options.size / (4 * options.width**2 / 2**20)))
    model = (TRANSFORMER if options.blocks else LINEAR).format(layers=layers, width=options.width, steps=options.steps)
    found: dict[str, list[Figures]] = {strategy: [] for strategy in (BASE, *options.strategies)}
    for number in range(options.rounds):
        for strategy, figures in found.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                figures.append(measured(Path(folder), strategy, engines=options.engines, model=model, steps=options.steps))
            first, largest, last, step = map(round, figures[-1])
            print(f"round {number + 1}, {strategy}: {first}, {largest}, {last} MiB, {step} ms", flush=True)
    parameters = (12 if options.blocks else 1) * 4 * layers * options.width**2 >> 20
    print(
        f"{layers} {'blocks' if options.blocks else 'layers'} of {options.width}, {parameters} MiB of parameters, "
        f"on {options.engines} engines, load average {os.getloadavg()[0]:.1f}:"
    )
    for column, what in enumerate(WHAT):
        for strategy, figures in found.items():
            of_round = [one[column] / base[column] for one, base in zip(figures, found[BASE], strict=True)]
            print(f"  {what}, {strategy}: {spread([one[column] for one in figures])}, {spread(of_round)} × {BASE}")


if __name__ == "__main__":
    main()
