"""``--split-inputs``: cells without a loader, whose models compute on a share each and come to the same."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import difference

SETUP = """
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
inputs = torch.randn(48, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
rows = []
exec("def note(size): rows.append(size)")  # as of a library: what a model keeps of its samples would give it the whole batch

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, x):
        note(x.shape[0])
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
BY_INDEX = """
def get_batch():
    chosen = torch.randint(len(inputs), (12,))
    return inputs[chosen], targets[chosen]

losses = []
for step in range(6):
    x, y = get_batch()
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"{losses[-1]:.9f}", x.shape)
"""
AT_ONCE = """
losses = []
for step in range(6):
    predicted = model(inputs)
    loss = ((predicted - targets) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(((predicted > 0) == (targets > 0)).float().mean().item(), f"{predicted.std().item():.9f}")
"""
ROW_BY_ROW = """
losses = []
for row, target in zip(inputs[:3], targets):
    model.norm.eval()
    loss = F.mse_loss(model(row[None]), target[None])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
CELLS = {"batches by index": (BY_INDEX, 6), "all data at once": (AT_ONCE, 24), "a single row is nobody's share": (ROW_BY_ROW, 1)}


def compare(notebook, setup, cell, state):
    """Run a cell plain and on two engines, after the same setup; return what the second has printed beside its numbers."""
    notebook.run(setup)
    plain = notebook.run(cell)
    expected = notebook.value(f"({state}, torch.rand(2))")
    notebook.run(setup)
    distributed = notebook.run("%%distribute --engines 2 --split-inputs\n" + cell)
    assert difference(notebook.value(f"({state}, torch.rand(2))"), expected) is None
    assert distributed.stdout == plain.stdout
    return distributed.stderr


@pytest.mark.parametrize("name", CELLS)
def test_engines_compute_on_their_shares_and_come_to_the_same(notebook, name):
    cell, rows = CELLS[name]
    told = compare(notebook, SETUP, cell, "losses, model.state_dict(), optimizer.state_dict()")
    assert notebook.value("rows[-1]") == rows
    assert ("No DataLoader was sharded" in told) == (rows == 1)


def test_a_model_that_computes_its_own_loss(notebook):
    setup = (
        SETUP
        + """
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place, self.head = nn.Embedding(10, 8), nn.Embedding(5, 8), Net()
        self.head.first = nn.Linear(8, 8)
        self.head.norm = nn.Identity()

    def forward(self, tokens, targets=None):
        hidden = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        scores = self.head(hidden)
        return scores, None if targets is None else F.mse_loss(scores.view(-1), targets.view(-1))

model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
tokens, wanted = torch.randint(10, (8, 5)), torch.rand(8, 5)
"""
    )
    cell = """
losses = []
for step in range(6):
    scores, loss = model(tokens, targets=wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 3:
        model.eval()
        with torch.no_grad():
            print(f"{model(tokens)[0].mean().item():.9f}", rows[-1])
        model.train()
"""
    compare(notebook, setup, cell, "losses, model.state_dict(), optimizer.state_dict()")
    assert notebook.value("rows[-1]") == 4


def test_two_models_and_noise_that_the_cell_draws(notebook):
    setup = (
        SETUP
        + """
maker = nn.Sequential(nn.Linear(3, 6), nn.Tanh())
optimizer_of_maker = torch.optim.AdamW(maker.parameters(), lr=0.01)
"""
    )
    cell = """
history = []
for step in range(4):
    real = inputs[torch.randperm(len(inputs))[:16]]
    made = maker(torch.randn(16, 3))
    apart = F.softplus(-model(real)).mean() + F.softplus(model(made.detach())).mean()
    optimizer.zero_grad()
    apart.backward()
    optimizer.step()
    like = F.binary_cross_entropy_with_logits(model(made), torch.ones(16, 1))
    optimizer_of_maker.zero_grad()
    like.backward()
    optimizer_of_maker.step()
    history.append((apart.item(), like.item()))
print(f"{made.mean().item():.9f}")
"""
    compare(notebook, setup, cell, "history, model.state_dict(), maker.state_dict()")
    assert notebook.value("rows[-1]") == 8
