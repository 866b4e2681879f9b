"""Models that make something of several samples only from a later call on, as a number says: they come to what one process comes to."""

from __future__ import annotations

import pytest

from tests.conftest import in_turn
from tests.engine.ranks import run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import random
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(20, 3), torch.randn(20, 2)), batch_size=8)
EPOCH = 0

def centred(h):
    return h - h.mean(0)

class Centred(nn.Module):
    def forward(self, h):
        return centred(h)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.calls, self.epoch, self.centre = nn.Linear(3, 6), nn.Linear(6, 2), 0, 0, Centred()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def divided(self, h):
        return h / h.norm()

    def forward(self, x, epoch=0, *, alpha=0.0):
        self.calls, h = self.calls + 1, torch.tanh(self.first(x))
        self.steps += 1
        {then}
        return self.last(h)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
CELL = """
losses = []
for epoch in range(3):
    EPOCH = model.epoch = epoch
    for x, y in loader:
        loss = F.mse_loss(model(x, epoch, alpha=max(0.0, epoch - 0.5)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
LATER = {
    "a count of calls": "if self.calls > 4: h = h - h.mean(0, keepdim=True)",
    "a count in a buffer": "if self.steps > 4: h = h / h.std()",
    "an attribute that the cell sets": "if self.epoch >= 1: h = h - h.amax(dim=0)",
    "an argument": "h = h if epoch < 2 else h + h.roll(1, 0)",
    "an argument by name": "if alpha > 0: h = self.divided(h)",
    "a global name": "if EPOCH == 1: h = centred(h)",
    "each third call": "if not self.calls % 3: h = self.centre(h)",
    "an early return": "if self.calls < 5: return self.last(h)\n        if self.training: h = torch.mm(torch.mm(h, h.t()), h)",
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(LATER, [2, 3]))
def test_what_begins_later(ranks, name, world_size):
    setup = SETUP.replace("{then}", LATER[name])
    (plain,) = ranks.call(1, run_plain, setup, CELL, "losses, model.state_dict()")
    for found in ranks.call(world_size, run_notebook, setup, CELL, "losses, model.state_dict()", {"global_draws": True}):
        assert apart(plain["compared"], found["compared"]) is None
