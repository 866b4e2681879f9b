"""A cell that logs to TensorBoard: once, in the folder of the notebook's writer, and all of it when the cell is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
x = torch.randn(24, 3, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
CELL = """
for epoch in range(2):
    for step, (xb, yb) in enumerate(loader, epoch * len(loader)):
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss, step)
        writer.add_histogram("inputs", xb, step)
    writer.add_scalars("losses", {"train": loss.item(), "double": 2 * loss.item()}, epoch)
"""


def logged(folder: Path) -> list[list[tuple[int, float]]]:
    """Return steps and values of the loss in each of the files in a folder that have any."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        events = EventAccumulator(str(path)).Reload()
        if "loss" in events.Tags()["scalars"]:
            found.append([(event.step, event.value) for event in events.Scalars("loss")])
    return found


def same(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> bool:
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in expected] == list[object](found)


@pytest.fixture
def plain(notebook, request):
    """What the cell logs without its first line, from the same weights."""
    notebook.run(SETUP + "before = {name: value.clone() for name, value in model.state_dict().items()}")
    notebook.run(f"writer = SummaryWriter('plain {request.node.name}')\n" + CELL + "writer.close()\nmodel.load_state_dict(before)")
    (expected,) = logged(notebook.folder / f"plain {request.node.name}")
    assert len(expected) == 8
    return expected


def test_a_writer_of_the_notebook(notebook, plain):
    notebook.run("writer = SummaryWriter('logs')\nwriter.add_scalar('before', 1.0, 0)")
    cell = notebook.run("%%distribute --engines 2\n" + CELL)
    assert cell.stderr == ""
    (found,) = logged(notebook.folder / "logs")
    assert same(found, plain)
    assert len(list((notebook.folder / "logs" / "losses_train").iterdir())) == 1
    notebook.run("writer.add_scalar('after', 2.0, 9)\nwriter.close()")  # it is still the notebook's, with its own file
    files = [EventAccumulator(str(path)).Reload() for path in (notebook.folder / "logs").glob("events.*")]
    assert sorted(sorted(file.Tags()["scalars"]) for file in files) == [["after", "before"], ["loss"]]


def test_a_writer_in_an_object_made_in_the_cell_with_a_graph(notebook, plain):
    notebook.run("""
class Trainer:
    def __init__(self, model):
        self.model = model
    def start(self, folder):
        self.writer = SummaryWriter(folder)
        self.writer.add_graph(self.model, next(iter(loader))[0])
""")
    cell = notebook.run("%%distribute --engines 2\ntrainer = Trainer(model)\ntrainer.start('made')\nwriter = trainer.writer\n" + CELL)
    assert "stays" not in cell.stderr
    (found,) = logged(notebook.folder / "made")
    assert same(found, plain)
    graphs = [EventAccumulator(str(path)).Reload().Tags()["graph"] for path in (notebook.folder / "made").glob("events.*")]
    assert graphs == [True]
    notebook.run("trainer.writer.add_scalar('after', 2.0, 9)\ntrainer.writer.close()")
    assert len(list((notebook.folder / "made").glob("events.*"))) == 2
