"""How long stages of a pipeline wait: ``python -m bench.bubble [--engines 2] [--width 1536] [--blocks 8] [--rounds 5]``.

A pass over equal blocks, forward and back, by one thread and by stages of one thread each, in turns. Of *n* stages with as many
micro-batches each waits for (n - 1) / (2 n - 1) of a pass (GPipe). It has to be an idle machine with a core for each engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from .contenders import Kernel

LIMIT = 600.0  # seconds of a cell
SETUP = """
import json, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear({width}, {width}), nn.GELU()) for _ in range({blocks})))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs = torch.randn({steps} * {batch_size}, {width})
loader = DataLoader(TensorDataset(inputs, inputs.flip(1)), batch_size={batch_size})
times = []
"""
CELL = """
import time
torch.set_num_threads(1)
for x, y in loader:
    optimizer.zero_grad()
    begun = time.perf_counter()
    for part, target in {batches}:
        (nn.functional.mse_loss(model(part), target) / {parts}).backward()
    times.append(time.perf_counter() - begun)
    optimizer.step()
"""
MICRO_BATCHES = "zip(x.chunk({parts}), y.chunk({parts}))"
NOT_TIMED = 4
"""Steps at first, before activations are sent."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.bubble", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    wanted = (options.engines - 1) / (2 * options.engines - 1)
    magic = f"%%distribute --engines {options.engines} --device cpu --strategy pipeline"
    setup = SETUP.format(width=options.width, blocks=options.blocks, steps=options.steps, batch_size=options.batch_size)
    found: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kernel = Kernel(Path(folder), env={"PYTHONPATH": str(Path(__file__).parents[1])})
        try:
            kernel.run("%load_ext jupyter_dtrain\n")
            for _ in range(options.rounds):
                passes: list[float] = []
                # One thread computes the micro-batches too: fewer rows at a time take longer each.
                for head, parts, batches in (("", options.engines, MICRO_BATCHES), (magic, 1, "[(x, y)]")):
                    kernel.run(setup)
                    kernel.run(head + CELL.format(parts=parts, batches=batches.format(parts=parts)), LIMIT)
                    times = json.loads(kernel.run("print(json.dumps(times))").splitlines()[-1])
                    passes.append(statistics.median(times[NOT_TIMED:]))
                alone, staged = passes
                found.append(1.0 - alone / options.engines / staged)
                print(
                    f"one thread {alone * 1e3:.0f} ms, {options.engines} stages {staged * 1e3:.0f} ms, waiting {found[-1]:.3f}", flush=True
                )
        finally:
            kernel.close()
    middle = statistics.median(found)
    print(
        f"waiting {middle:.3f} ({min(found):.3f}–{max(found):.3f}) of a pass, wanted {wanted:.3f}: {middle / wanted - 1:+.1%}; "
        f"load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
