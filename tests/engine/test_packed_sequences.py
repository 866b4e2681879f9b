"""Packed sequences within a model are padded to the longest of the batch, whichever rank has it."""

from __future__ import annotations

import pytest

from tests.engine.ranks import run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader
lengths = [4] * 6 + [5, 2, 3, 1, 2, 2] + [1, 1, 2, 1, 6, 2] + [3, 2]  # the first batch does not show it
data = [(torch.randint(1, 9, (n,)), torch.randint(0, 3, (n,))) for n in lengths]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(9, 5, padding_idx=0), nn.GRU(5, 6, batch_first=True)
        self.scores, self.out = nn.Linear(6, 1), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.2)

    def padded(self, x, lengths):
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        return self.drop(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])

    def forward(self, x, lengths):
        {forward}

def collate(batch):
    x, y = zip(*batch)
    return pad_sequence(x, True), torch.tensor([len(one) for one in x]), pad_sequence(y, True, -100)

loader = DataLoader(data, 6, collate_fn=collate)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 0.02)
"""
CELL = """
losses, shapes = [], []
for epoch in range(2):
    for x, n, y in loader:
        out = model(x, n)
        shapes.append(tuple(out.shape))
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten() if out.dim() == 3 else y[:, 0], ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
FORWARD = {
    "a result per step": "return self.out(self.padded(x, lengths))",
    "attention with a mask": """h = self.padded(x, lengths)
        weights = self.scores(torch.tanh(h)).squeeze(-1).masked_fill(x == 0, -1e9).softmax(1)
        return self.out((weights.unsqueeze(-1) * h).sum(1))""",
    "a mean over the steps": "return self.out(self.padded(x, lengths).mean(1))",
    "a list that is packed": """packed = pack_sequence([one[:n] for one, n in zip(self.embedding(x), lengths)], enforce_sorted=False)
        h = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]
        return self.out(h.sum(1) / h.size(1))""",
}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", FORWARD)
def test_results_are_those_of_one_process(ranks, name, world_size):
    setup, compare = SETUP.replace("{forward}", FORWARD[name]), "losses, shapes, model.state_dict()"
    (plain,) = ranks.call(1, run_plain, setup, CELL, compare)
    for found in ranks.call(world_size, run_notebook, setup, CELL, compare, {"global_draws": True}):
        assert apart(plain["compared"], found["compared"]) is None
