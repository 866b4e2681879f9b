"""``--checkpoint-activations``: less memory, and the same result."""

from __future__ import annotations

import pytest

from tests.conftest import one_of
from tests.notebook.kernel import difference

SETUP = """
import torch.utils.checkpoint

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = nn.Linear(width, 4 * width), nn.BatchNorm1d(4 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * width, width)
        self.body = nn.Sequential(*layers)
    def forward(self, x, *, scale=1.0):
        return x + scale * self.body(x)

class Deep(nn.Module):
    def __init__(self, width=16, depth=12):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.last(x)

class Counting(Block):
    calls = 0
    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return super().forward(x, scale=scale)

class Noting(Block):
    def __init__(self, width):
        super().__init__(width)
        self.calls = []
    def forward(self, x, *, scale=1.0):
        self.calls.append(len(self.calls))
        return super().forward(x, scale=scale)

def make(block=Block):
    global model, optimizer, loader, losses, kept_of_step
    torch.manual_seed(0)
    model = Deep()
    model.blocks = nn.ModuleList(block(16) for _ in model.blocks)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(60, 4), torch.randn(60, 1)), batch_size=24, shuffle=True)
    losses, kept_of_step = [], []

class Kept:
    # A tensor that is kept for the backward pass, counted as long as it is there.
    now = most = 0
    def __init__(self, tensor):
        self.tensor = tensor
        Kept.now += tensor.numel()
        Kept.most = max(Kept.most, Kept.now)
    def __del__(self):
        Kept.now -= self.tensor.numel()
"""
CELL = """
for epoch in range(3):
    for x, y in loader:
        Kept.most = Kept.now
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            loss = F.mse_loss(model(x), y)
        kept_of_step.append(Kept.most)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
STATE = (
    "(model.state_dict(), optimizer.state_dict(), losses, [block.__dict__.get('calls') for block in model.blocks], torch.rand(3).tolist())"
)


@pytest.mark.parametrize("engines", one_of(3, [2, 3, 1]))
def test_it_comes_to_the_same_and_keeps_less(notebook, engines):
    notebook.run(SETUP)
    found = {}
    for options in ("", "--checkpoint-activations"):
        notebook.run("make()")
        notebook.run(f"%%distribute --engines {engines} {options}" + CELL)
        found[options] = notebook.value(STATE), notebook.value("(kept_of_step[0], kept_of_step[-1])")
    (plain, kept), (checkpointed, kept_less) = found.values()
    assert difference(checkpointed, plain) is None
    for number in (0, -1):
        assert kept_less[number] < kept[number] / 4, "of twelve blocks, their inputs; in the first step as in the last"


@pytest.mark.parametrize(("kind", "calls"), [("Counting", 9), ("Noting", list(range(9)))])
def test_a_block_that_notes_its_calls_is_left_as_it_is(notebook, kind, calls):
    notebook.run(SETUP)
    notebook.run(f"make({kind})" + CELL)
    plain = notebook.value(STATE)
    notebook.run(f"make({kind})")
    notebook.run("%%distribute --engines 2 --checkpoint-activations" + CELL)
    assert difference(notebook.value(STATE), plain) is None
    assert notebook.value("model.blocks[0].calls") == calls


def test_a_transformer(notebook):
    notebook.run(
        "def make():\n"
        "    global model, optimizer, loader\n"
        "    torch.manual_seed(0)\n"
        "    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\n"
        "    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(8, 1))\n"
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)\n"
        "    loader = DataLoader(TensorDataset(torch.randn(20, 6, 4), torch.randn(20, 6, 1)), batch_size=8)\n"
    )
    cell = "\nfor x, y in loader:\n    loss = F.mse_loss(model(x), y)\n    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
    notebook.run("make()" + cell)
    plain = notebook.value("(model.state_dict(), loss.item())")
    notebook.run("make()")
    notebook.run("%%distribute --engines 2 --checkpoint-activations" + cell)
    assert difference(notebook.value("(model.state_dict(), loss.item())"), plain) is None
