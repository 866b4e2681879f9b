"""``--strategy auto`` with a limit that data parallel does not fit into: another plan is taken, and the numbers are the same."""

from __future__ import annotations

import re

import pytest

from tests.notebook.kernel import difference

SETUP = """
import jupyter_dtrain
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
inputs = torch.randn(128, 64)
loader = DataLoader(TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True))), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses, exchanged = [], []
"""
CELL = """
from jupyter_dtrain.engine.comm.process_group import shared_memory
for x, y in loader:
    before = shared_memory().num_read
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    exchanged.append(shared_memory().num_read - before)
    losses.append(loss.item())
exchanged = max(jupyter_dtrain.gather(exchanged[-2]))
"""
STATE = "(model.state_dict(), optimizer.state_dict(), losses)"


def test_a_plan_that_fits_ends_with_the_same_numbers(notebook):
    notebook.run(SETUP)
    shown = notebook.run(f"%%distribute --engines 2 --device cpu{CELL}")
    plain = notebook.value(STATE)
    gradients = notebook.value("sum(p.nbytes for p in model.parameters())")
    assert notebook.value("exchanged") == pytest.approx(gradients, rel=0.05), "what a plan has for two engines under auto"
    assert not any("--strategy auto" in line for line in shown.notices)
    notebook.run(SETUP)
    shown = notebook.run(f"%%distribute --engines 2 --device cpu --memory-limit 3M{CELL}")
    (said,) = [line for line in shown.notices if line.startswith("`--strategy auto` takes ")]
    taken = re.match(r"`--strategy auto` takes --strategy (\w+): \d\.\d MiB of 3\.0 MiB for each of 2 engines; auto would take ", said)
    assert taken is not None, said
    assert taken[1] in ("zero1", "zero3", "tensor", "pipeline")
    assert "exchanged" in said, "and a table of the others"
    assert difference(notebook.value(STATE), plain) is None
    notebook.run(SETUP)
    error = notebook.fail(f"%%distribute --engines 2 --device cpu --memory-limit 100K{CELL}").error[1]
    assert "None has room: --strategy " in error


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["auto", "zero1", "zero3", "pipeline", "tensor"])
def test_engines_read_as_much_of_each_other_as_is_planned(notebook, strategy):
    notebook.run(SETUP)
    notebook.run(f"%%distribute --engines 2 --device cpu --strategy {strategy}{CELL}")
    counted = notebook.value("exchanged")
    rows = [line.split() for line in notebook.run("%distribute plan --engines 2 --device cpu").stdout.splitlines() if line]
    (row,) = [row for row in rows if row[:2] == ["2", strategy]]
    planned = float(row[12]) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[row[13]]
    assert counted == pytest.approx(planned, rel=0.1)
