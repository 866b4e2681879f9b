"""Random numbers on the card: the notebook's own stream, alike on all engines, and on as it was afterwards."""

from __future__ import annotations

import pytest

from tests.gpu.card import difference

pytestmark = pytest.mark.gpu(on_cpu=True)

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 6)).to("DEVICE")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
seen = []
"""
NOISE = """
made = nn.Linear(6, 6, device="DEVICE")  # alike on all engines
for x, in loader:
    x = x.to("DEVICE")
    noisy = x + 0.1 * torch.randn_like(x)
    loss = F.mse_loss(made(noisy), x) + torch.rand((), device="DEVICE")
    optimizer.zero_grad()
    loss.backward()
    seen.append(loss.item())
print(seen[-1], torch.randperm(5, device="DEVICE").tolist())
"""
DROPOUT = """
for x, in loader:
    x = x.to("DEVICE")
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append(loss.item())
"""


def test_what_the_cell_draws_is_the_notebooks_stream(card):
    card.assert_same(SETUP.replace("DEVICE", card.device), NOISE.replace("DEVICE", card.device), "seen, made.state_dict()")


def test_dropout_over_the_whole_batch(card):
    card.assert_same(SETUP.replace("DEVICE", card.device), DROPOUT.replace("DEVICE", card.device), "seen, model.state_dict()")


def test_dropout_of_each_rank_is_exact_on_one_engine_and_repeats_on_two(card):
    setup, cell = SETUP.replace("DEVICE", card.device), DROPOUT.replace("DEVICE", card.device)
    compare, options = "seen, model.state_dict()", "--rng per-rank"
    plain, alone = card.run(setup, cell, compare), card.run(setup, cell, compare, 1, options)
    assert difference(plain, alone, 1e-9) is None
    first, second = (card.run(setup, cell, compare, 2, options) for _ in range(2))
    assert difference(first, second, 1e-9) is None
    assert difference(plain, first, 1e-9) is not None


def test_cells_one_after_the_other_go_on_in_the_stream(card):
    setup = SETUP.replace("DEVICE", card.device)
    cell = NOISE.replace("DEVICE", card.device)
    found = []
    for engines in (0, 2):
        card.run(setup, cell, "0", engines)
        line = card.line(engines) if engines else ""
        card.notebook.run(line + cell)  # with what the first has left
        found.append(
            card.notebook.value(f"(seen, [float(p.sum()) for p in made.parameters()], [part.tolist() for part in {card.random()}[:2]])")
        )
    for plain, on_engines in zip(found[0][0], found[1][0], strict=True):
        assert plain == pytest.approx(on_engines, rel=1e-9)
    assert found[0][2] == found[1][2]


@pytest.mark.gpu
def test_a_seed_for_the_card_alone_holds(card):
    setup = SETUP.replace("DEVICE", card.device) + "torch.cuda.manual_seed(123)\n"
    card.assert_same(setup, NOISE.replace("DEVICE", card.device), "seen, made.state_dict()")


@pytest.mark.gpu
def test_a_generator_on_the_card_goes_along(card):
    setup = SETUP.replace("DEVICE", card.device) + "generator = torch.Generator('cuda').manual_seed(5)\n"
    cell = "for _ in range(3):\n    seen.append(torch.rand(2, device='cuda', generator=generator).tolist())\nprint(seen)"
    card.assert_same(setup, cell, "seen, torch.rand(2, device='cuda', generator=generator)")
