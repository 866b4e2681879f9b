"""A model that comes to something else on parts of a batch only after a while: the run goes back and comes to what one process does."""

from __future__ import annotations

import pytest

from tests.notebook.corpus_cells import apart

SETUP = """
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.calls = nn.Linear(6, 1), 0
    def forward(self, x):
        self.calls += 1
        out = self.l(x)
        return out + 0.01 * (out - out.detach()) * sum(1 for _ in x) if self.calls > 40 else out

def make_late():
    global model, optimizer, loader, losses
    torch.manual_seed(0)
    model = Late().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(12000, 6, dtype=torch.float64)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    losses = []
"""
CELL = """
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if number % 500 == 0:
        print(f"batch {number}: loss {losses[-1]:.5f}")
"""
AT_ONCE = """
from jupyter_dtrain.engine.verify import schedule
schedule.PART = 1.0
"""
STATE = "([p.detach() for p in model.parameters()], losses, model.calls)"


BY_ITSELF = pytest.param("", AT_ONCE, marks=pytest.mark.long)


@pytest.mark.parametrize(("options", "before"), [("--verify first", ""), BY_ITSELF], ids=["first", "by itself"])
def test_a_run_goes_back_where_a_model_is_found_to_differ_later(two, options, before):
    notebook = two.notebook
    notebook.run(SETUP + "make_late()")
    plain = notebook.run(CELL)
    expected = notebook.value(STATE)
    notebook.run("make_late()")
    ran = notebook.run(f"%%distribute --engines 2 {options}\n{before}{CELL}")
    (said,) = [line for line in ran.stderr.splitlines() if "gave another result " in line]
    assert said.startswith("`Late` ")
    assert "its gradients" in said
    assert apart(notebook.value(STATE), expected) is None
    assert ran.stdout == plain.stdout, "each line once"
