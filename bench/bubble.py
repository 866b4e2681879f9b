"""How long stages of a pipeline wait: ``python -m bench.bubble [--engines 2] [--width 1536] [--blocks 8] [--rounds 5]``.

A pass over equal blocks, forward and back, by one thread and by stages of one thread each, in turns. Of *n* stages with as many
micro-batches each waits for (n - 1) / (2 n - 1) of a pass (GPipe): the time in which its thread does not run. What stages do beside the
model, as sending activations and adding up gradients, is no waiting: it is in the time of a pass, beside that of one thread, which takes
(2 n - 1) / n² of it at best. It has to be an idle machine with a core for each engine.
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
import json, jupyter_dtrain, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear({width}, {width}), nn.GELU()) for _ in range({blocks})))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs = torch.randn({batch_size}, {width})
loader = DataLoader(TensorDataset(inputs, inputs.flip(1)), batch_size={batch_size})
times, waits = [], []
"""
CELL = """
import time
torch.set_num_threads(1)
for _ in range({steps}):
    for x, y in loader:
        optimizer.zero_grad()
        begun, running = time.perf_counter(), time.thread_time()
        for part, target in {batches}:
            (nn.functional.mse_loss(model(part), target) / {parts}).backward()
        times.append(time.perf_counter() - begun)
        waits.append(1 - (time.thread_time() - running) / times[-1])
        optimizer.step()
{gathered}"""
GATHERED = "waits = jupyter_dtrain.gather(waits)\n"
MICRO_BATCHES = "zip(x.chunk({parts}), y.chunk({parts}))"
NOT_TIMED = 15
"""Steps at first: before activations are sent, and while the first snapshot is written, by a process of its own."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.bubble", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    wanted = (options.engines - 1) / (2 * options.engines - 1)
    magic = f"%%distribute --engines {options.engines} --device cpu --strategy pipeline"
    setup = SETUP.format(width=options.width, blocks=options.blocks, batch_size=options.batch_size)
    found: list[float] = []
    longer: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kernel = Kernel(Path(folder), env={"PYTHONPATH": str(Path(__file__).parents[1])})
        try:
            kernel.run("%load_ext jupyter_dtrain\n")
            for _ in range(options.rounds):
                passes: list[float] = []
                # One thread computes the micro-batches too: fewer rows at a time take longer each.
                for head, parts, batches, gathered in (("", options.engines, MICRO_BATCHES, ""), (magic, 1, "[(x, y)]", GATHERED)):
                    kernel.run(setup)
                    batches = batches.format(parts=parts)
                    kernel.run(head + CELL.format(steps=options.steps, parts=parts, batches=batches, gathered=gathered), LIMIT)
                    times, waits = json.loads(kernel.run("print(json.dumps([times, waits]))").splitlines()[-1])
                    passes.append(statistics.median(times[NOT_TIMED:]))
                alone, staged = passes
                longer.append(staged / alone)
                found.append(statistics.mean(statistics.median(of_stage[NOT_TIMED:]) for of_stage in waits))
                print(
                    f"one thread {alone * 1e3:.0f} ms, {options.engines} stages {staged * 1e3:.0f} ms ({longer[-1]:.2f} ×), "
                    f"waiting {found[-1]:.3f}",
                    flush=True,
                )
        finally:
            kernel.close()
    middle = statistics.median(found)
    print(
        f"waiting {middle:.3f} ({min(found):.3f}–{max(found):.3f}) of a pass, wanted {wanted:.3f}: {middle / wanted - 1:+.1%}\n"
        f"a pass takes {statistics.median(longer):.2f} ({min(longer):.2f}–{max(longer):.2f}) × one thread's, at best "
        f"{(2 * options.engines - 1) / options.engines**2:.2f}; load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
