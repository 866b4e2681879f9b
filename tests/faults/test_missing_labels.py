"""A label that a loss ignores, the first after thousands that it does not: the run goes back by itself and comes to the same."""

from __future__ import annotations

import pytest

from jupyter_dtrain.runs.store import RunStore
from tests.notebook.corpus_cells import apart

SETUP = """
def make_labels():
    global model, optimizer, loader, losses
    torch.manual_seed(0)
    x = torch.randn(1800, 12)
    y = (x.sum(1) > 0).long()
    y[1750] = y[1777] = -100
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    losses = []
"""
CELL = """
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    pace()
    if number % 60 == 0:
        print(f"batch {number}: loss {losses[-1]:.5f}")
"""
STATE = "([p.detach() for p in model.parameters()], losses)"


@pytest.mark.long
def test_a_run_goes_back_to_count_labels_that_it_had_taken_for_complete(two):
    notebook = two.notebook
    notebook.run(SETUP + "make_labels()")
    plain = notebook.run(CELL)
    expected = notebook.value(STATE)
    notebook.run("make_labels()")
    ran = notebook.run("%%distribute --engines 2 --name labels" + CELL)
    assert ran.stderr.count("A target is ignored for the first time: resuming from step ") == 1
    assert apart(notebook.value(STATE), expected) is None
    assert ran.stdout == plain.stdout, "each line once"
    store = RunStore(notebook.folder / "dtrain-runs")
    (record,) = [one for one in store.list_runs() if one.name == "labels"]
    assert store.points(record.run_id, "loss").step == list(range(1, 181)), "each step once"
