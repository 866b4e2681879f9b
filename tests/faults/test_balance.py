"""Shares by speed: with an engine that is slower than the other, the cell comes to what the plain cell comes to."""

from __future__ import annotations

import pytest

from tests.conftest import one_of
from tests.notebook.kernel import difference

SETUP = """
import time
import torch.distributed as dist

class SlowOnOneEngine(TensorDataset):
    def __getitems__(self, indices):
        rank = dist.get_rank() if dist.group.WORLD is not None else 0
        time.sleep(1e-3 * len(indices) * rank)  # longer than a step: a worker loads ahead, and hides what is shorter
        return [self[index] for index in indices]

torch.manual_seed(0)
inputs = torch.randn(500, 32)
targets = torch.sin(inputs.sum(1, keepdim=True))
data, forked = SlowOnOneEngine(inputs, targets), "fork" if {workers} else None
loader = DataLoader(data, batch_size=96, shuffle=True, num_workers={workers}, multiprocessing_context=forked)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
history = []
"""
TRAIN = """
for epoch in range(30):
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((len(x), loss.item(), (out > 0).sum().item(), out[-1].item()))
"""
STATE = "(model.state_dict(), history, torch.rand(2))"


@pytest.mark.parametrize("workers", one_of(2, [0, 1]))
def test_a_slow_engine_gets_less_of_each_batch_and_the_result_is_the_same(two, workers):
    with two.lent() as notebook:
        notebook.run(SETUP.format(workers=workers))
        notebook.run(TRAIN)
        expected = notebook.value(STATE)
        notebook.run(SETUP.format(workers=workers))
        cell = notebook.run(f"%%distribute --engines 2 --device cpu --balance auto{TRAIN}")
        assert "The engines are not equally fast: of each batch they take " in cell.stderr
        assert difference(notebook.value(STATE), expected) is None
