"""Memory is predicted beside a notebook that has used the card already, and is what engines take."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu

SETUP = """
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 2048), torch.randint(0, 10, (64,))), batch_size=32)
model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.ReLU())), nn.Linear(2048, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
"""
CELL = """
torch.cuda.reset_peak_memory_stats()
for x, y in loader:
    loss = F.cross_entropy(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
peak = torch.cuda.max_memory_allocated()
"""
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@pytest.mark.parametrize("strategy", ["auto", "zero3"])
def test_engines_on_one_card_take_what_is_predicted(card, strategy):
    card.notebook.run(SETUP + CELL)  # from now on a fork could use neither the card nor autograd
    card.notebook.run(SETUP + f"exec({CELL!r}) if False else None")
    card.notebook.run(f"{card.line(2, f'--strategy {strategy}')}{CELL}")
    measured = card.notebook.value("peak")
    rows = [
        line.split() for line in card.notebook.run(f"%distribute plan -n 2 --device {card.device} --devices shared").stdout.splitlines()
    ]
    (row,) = [row for row in rows if row[:2] == ["2", strategy]]
    assert float(row[2]) * UNITS[row[3]] == pytest.approx(measured, rel=0.15)
