"""Checkpoints of each strategy go on under each other, on other numbers of engines: what a run comes to is what one process comes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import Notebook, difference
from tests.notebook.test_zero3 import INNER, SETUP, STATE

pytestmark = pytest.mark.long

WAYS = {
    "auto": "--strategy auto",
    "zero1": "--strategy zero1",
    "zero3": "--strategy zero3",
    "pipeline": "--strategy pipeline",
    "tensor": "--strategy tensor",
    "stages": "--mesh dp=2,pp=2",
    "columns": "--mesh dp=2,tp=2",
    "rows": "--mesh dp=2,dp_shard=2",
}
NAMES = [*WAYS]
LOOP = f"for epoch in range(3):{INNER}"
AFTER = 4
"""Steps: a pipeline hands activations on already."""

HEAD = "torch.set_default_dtype(torch.float64)\ntorch.manual_seed(1)\nlosses = []\n"
CNN = f"""{HEAD}
inputs, targets = torch.randn(45, 1, 8, 8), torch.randn(45, 4)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=18)
"""
TIED = f"""{HEAD}
inputs, targets = torch.randint(0, 128, (45, 6)), torch.randn(45, 128)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, 64), nn.Linear(64, 128, bias=False)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True) for _ in range(3))
        self.head.weight = self.embedding.weight
    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))
model = Tied()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18)
"""
RECURRENT = f"""{HEAD}
inputs, targets = torch.randn(45, 5, 6), torch.randn(45, 4)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 64, num_layers=2, batch_first=True, dropout=0.1), nn.Linear(64, 4)
    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])
model = Recurrent()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
"""
MODELS = {"MLP": SETUP, "CNN": CNN, "tied transformer": TIED, "LSTM": RECURRENT}


def pairs() -> Iterator[Any]:
    """Yield each pair of strategies with the MLP, and with the other models pairs in which each strategy is either one twice."""
    for number, model in enumerate(MODELS):
        for index, before in enumerate(NAMES):
            for step in (1 + number, 3 + number) if number else range(len(NAMES)):
                after = NAMES[(index + step) % len(NAMES)]
                yield pytest.param(model, before, after, id=f"{model}-{before}-{after}")


def engines_of(way: str, number: int) -> str:
    """Return the options for a way, which has as many engines as its mesh says, or `number`."""
    return WAYS[way] if "--mesh" in WAYS[way] else f"{WAYS[way]} -n {number}"


@pytest.fixture(scope="module")
def notebook(module_notebook) -> Notebook:
    started: Notebook = module_notebook()
    return started


@pytest.fixture(scope="module")
def written(notebook, request) -> tuple[str, object]:
    """Run a model's loop under each strategy, each on another number of engines; return the model, and what they come to."""
    model: str = request.param
    notebook.run(IMPORTS + MODELS[model])
    notebook.run(LOOP)
    expected = notebook.value(STATE)
    for number, way in enumerate(NAMES, start=1):
        notebook.run(MODELS[model])
        options = f"--checkpoint-every {AFTER} --keep-checkpoints 9 --name {way}-{model.split()[0]}"
        notebook.run(f"%%distribute {engines_of(way, number)} {options}\n{LOOP}")
        assert difference(notebook.value(STATE), expected) is None, way
    return model.split()[0], expected


@pytest.mark.parametrize(("written", "before", "after"), pairs(), indirect=["written"])
def test_a_run_goes_on_under_another_strategy_and_on_other_engines(notebook, written, before, after):
    model, expected = written
    number = 1 + (NAMES.index(before) + 2 * NAMES.index(after) + 1) % 4
    notebook.run("del model, optimizer, losses")
    cell = notebook.run(f"%distribute resume {before}-{model}@{AFTER} {engines_of(after, number)}")
    assert f"{before}-{model}: resuming from step {AFTER}." in cell.stderr
    assert difference(notebook.value(STATE), expected) is None
    notebook.run("optimizer.step()")  # plain, with all of it


@pytest.mark.parametrize("written", ["MLP"], indirect=True)
def test_a_strategy_without_snapshots_is_refused(notebook, written):
    assert notebook.fail(f"%distribute resume auto-{written[0]} --strategy none").error == (
        "UsageError",
        "%distribute resume needs snapshots of the cell, which --strategy none does not have.",
    )
