"""What stopping poor trials early is worth: the digits with 27 combinations of values, as a grid and as ``--search asha:27``.

Both try the same combinations, from the same state, so their trials come to the same numbers as far as they train. What is compared is the
best of each, and the time that engines were at work: the sum of the trials' times, in which each has one engine.

    python -m bench.sweep [--engines 2] [--epochs 27]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .contenders import Kernel

SETUP = """
%load_ext jupyter_dtrain
import json
import jupyter_dtrain
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
digits = load_digits()
inputs, targets = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
order = torch.randperm(len(inputs))
train, held_out = order[:1437], order[1437:]
loader = DataLoader(TensorDataset(inputs[train], targets[train]), batch_size=32, shuffle=True)
lr, width, activation = 0.01, 64, nn.ReLU
epochs = {epochs}
"""
VARY = "--vary lr=0.001,0.0001,0.00001 --vary width=8,32,128 --vary activation=nn.ReLU,nn.Tanh,nn.Sigmoid --best val_loss"
CELL = """
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=lr)
for epoch in range(epochs):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = nn.functional.cross_entropy(model(inputs[held_out]), targets[held_out]).item()
"""
FIGURES = """
from jupyter_dtrain.runs.store import RunStore
store = RunStore()
runs = store.list_runs()[{before}:]
print(json.dumps({{
    "engine_seconds": sum(run.ended - run.started for run in runs),
    "steps": sum(store.last_point(run.run_id, "loss")[0] for run in runs),
    "pruned": [run.phase for run in runs].count("pruned"),
    "best": f"lr={{lr}} width={{width}} activation={{activation.__name__}}",
    "val_loss": val_loss,
}}))
store.close()
"""


@dataclass(frozen=True)
class Sweep:
    """What a sweep has taken and found.

    Attributes
    ----------
    engine_seconds : float
    steps, pruned : int
        Of all trials; how many of them were stopped early.
    best : str
        The best trial's values.
    val_loss : float
        What it has come to.
    """

    engine_seconds: float
    steps: int
    pruned: int
    best: str
    val_loss: float


def sweep(kernel: Kernel, options: str, *, engines: int) -> Sweep:
    """Run the cell with all combinations, and return what that has taken."""
    before = int(kernel.run("from jupyter_dtrain.runs.store import RunStore\nprint(len(RunStore().list_runs()))"))
    kernel.run("torch.manual_seed(2)")
    kernel.run(f"%%distribute --engines {engines} --device cpu {VARY} {options}{CELL}", limit=1200)
    return Sweep(**json.loads(kernel.run(FIGURES.format(before=before))))


def compared(*, engines: int, epochs: int) -> tuple[Sweep, Sweep]:
    """Return what the grid takes and finds, and what the search does."""
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Kernel(Path(name))) as kernel:
        kernel.run(SETUP.format(epochs=epochs))
        kernel.run(f"%%distribute --engines {engines} --device cpu --vary lr=1,2\nlr")  # the engines start
        return sweep(kernel, "", engines=engines), sweep(kernel, "--search asha:27", engines=engines)


def main() -> None:
    """Run both and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=27)
    options = parser.parse_args()
    grid, search = compared(engines=options.engines, epochs=options.epochs)
    for name, found in (("grid", grid), ("asha:27", search)):
        print(
            f"{name:8} {found.engine_seconds:7.1f} engine-seconds, {found.steps:6} steps, {found.pruned:2} of 27 stopped early; "
            f"best: {found.best}, val_loss {found.val_loss!r}"
        )
    seconds, steps = search.engine_seconds / grid.engine_seconds, search.steps / grid.steps
    print(f"asha:27 takes {seconds:.0%} of the engine-seconds and {steps:.0%} of the steps")


if __name__ == "__main__":
    main()
