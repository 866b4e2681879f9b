"""Measure one training cell: in the notebook's own process, and on engines.

What counts is what a user waits for, so everything runs in a real kernel: the time from running the cell to its first
finished step, and the steps per second after that. The two ways take turns, because a machine is never quite idle, and
the table shows medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import nbformat
from nbclient import NotebookClient

SETUP = """
%load_ext jupyter_dtrain
import json, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
"""

MODELS = {
    "CNN of the digits": """
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.GELU(), nn.Conv2d(32, 64, 3), nn.GELU(), nn.Flatten(), nn.Linear(1024, 10))
data = TensorDataset(torch.randn(3200, 1, 8, 8), torch.randint(10, (3200,)))
""",
    "MLP, 10 million": """
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 10))
data = TensorDataset(torch.randn(3200, 512), torch.randint(10, (3200,)))
""",
}

TRAINING = """
loader = DataLoader(data, batch_size=64, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""

CELL = """
finished = []
model.train()
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    finished.append(time.time())
print(json.dumps({"first": finished[0], "steps_per_second": (len(finished) - 1) / (finished[-1] - finished[0])}))
"""


class Kernel(NotebookClient):
    """A kernel that one cell after the other is run in."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nbformat.v4.new_notebook(), timeout=600, **kwargs)  # type: ignore[no-untyped-call]

    def run(self, source: str) -> str:
        """Run `source` as a cell and return what it printed."""
        cell = nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]
        self.nb.cells.append(cell)
        done = self.execute_cell(cell, len(self.nb.cells) - 1)
        return "".join(output.text for output in done.outputs if output.output_type == "stream" and output.name == "stdout")

    def measure(self, first_line: str) -> tuple[float, float]:
        """Run the training cell under `first_line`; return seconds to its first step, and steps per second after it."""
        started = time.time()
        measured = json.loads(self.run(first_line + CELL).splitlines()[-1])
        return measured["first"] - started, measured["steps_per_second"]


def main() -> None:
    """Measure every model both ways and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=2, help="engines to compare with one process (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is measured (default: 5)")
    arguments = parser.parse_args()

    ways = {"one process": "", f"{arguments.engines} engines": f"%%distribute --engines {arguments.engines}\n"}
    kernel = Kernel()
    with kernel.setup_kernel():
        kernel.run(SETUP)
        print(f"{'':20}{'':12}  first step   steps/s  (medians of {arguments.rounds})", flush=True)
        for name, model in MODELS.items():
            kernel.run(model + TRAINING)
            for first_line in ways.values():  # the engines start, and libraries load, outside the measurement
                kernel.measure(first_line)
            measured: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for _ in range(arguments.rounds):
                for way, first_line in ways.items():
                    measured[way].append(kernel.measure(first_line))
            for way, results in measured.items():
                first, rate = (statistics.median(column) for column in zip(*results, strict=True))
                print(f"{name:20}{way:12}{first:10.2f} s{rate:10.1f}", flush=True)


if __name__ == "__main__":
    main()
