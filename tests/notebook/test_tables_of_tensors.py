"""Tables and arrays of objects that hold tensors of batches come home as one process has them."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import difference

SETUP = """
import numpy as np, pandas as pd

def make():
    global model, optimizer, loader, slots, table, series, grid, frame
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.utils.data.TensorDataset(torch.randn(22, 3), torch.arange(22) % 2), 5, shuffle=True)
    slots, grid = np.empty(5, object), np.empty((5, 2), object)
    table = pd.DataFrame({"step": range(5), "loss": [None] * 5})
    series = pd.Series([None] * 5, dtype=object)
"""
CELL = """
rows, made, texts = [], np.empty(5, object), np.array(["a"] * 5, object)
held = {"table": None}
for number, (x, y) in enumerate(loader):
    out = model(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    made[number] = slots[number] = out.detach()
    grid[number, 0], grid[number, 1] = {"x": x.double()}, number
    table.at[number, "loss"] = loss.detach()
    series[number] = [out.detach().sum(), number]
    rows.append({"l": loss.detach(), "n": number, "p": out.detach()})
frame = pd.DataFrame(rows)
held["table"] = frame["l"]
losses = pd.Series([row["l"] for row in rows], dtype=object)
values = pd.DataFrame(rows)["p"].to_numpy()
by_number = frame.set_index("n")
"""
STATE = {
    "an array of the cell's": "[t.tolist() for t in made], texts.tolist()",
    "an array of the notebook's": "[t.tolist() for t in slots]",
    "a grid": "[(cell['x'].tolist(), number) for cell, number in grid.tolist()]",
    "a frame of the cell's": "[t.item() for t in frame['l']], frame['n'].tolist(), [t.tolist() for t in frame['p']]",
    "frames made of it": "[t.item() for t in held['table']], [t.item() for t in by_number['l']], by_number.index.tolist()",
    "a series of the cell's": "[t.item() for t in losses]",
    "what pandas gives out": "[t.tolist() for t in values]",
    "a frame of the notebook's": "[t.item() for t in table['loss']], table['step'].tolist()",
    "a series of the notebook's": "[(t.item(), number) for t, number in series]",
}


@pytest.mark.parametrize("engines", [2, pytest.param(3, marks=pytest.mark.long)])
def test_tensors_in_tables_come_home(notebook, engines):
    notebook.run(IMPORTS + SETUP)
    notebook.run("make()\n" + CELL)
    expected = {name: notebook.value(f"({state})") for name, state in STATE.items()}
    notebook.run("make()")
    cell = notebook.run(f"%%distribute --engines {engines}\n{CELL}")
    assert cell.stderr == ""
    found = {name: notebook.value(f"({state})") for name, state in STATE.items()}
    assert {name: apart for name in STATE if (apart := difference(found[name], expected[name])) is not None} == {}
