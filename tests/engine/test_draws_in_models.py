"""A model's own draws are those of one process, by each of PyTorch's random functions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.ranks import RankError, Run, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

OPTIONS = {"global_draws": True, "global_batchnorm": True}
DRAWS = [
    "h + torch.randn(len(h), 4)",
    "h + torch.randn((len(h), 4))",
    "h + torch.randn(size=(len(h), 4))",
    "h + torch.randn([len(h), 4], requires_grad=True)",
    "h * torch.rand(len(h))[:, None]",
    "h * torch.rand(size=[len(h), 1])",
    "h + torch.rand_like(h)",
    "h + torch.rand_like(input=h)",
    "h + torch.randn_like(h, requires_grad=True)",
    "h + torch.randint_like(h, 5)",
    "h * torch.randint(5, (len(h), 4))",
    "h * torch.randint(2, 5, (len(h), 1))",
    "h * torch.randint(high=3, size=(len(h), 4))",
    "h * torch.randint(-2, 3, size=[len(h), 4], dtype=torch.double)",
    "h + torch.empty_like(h).normal_()",
    "h + torch.empty_like(h).normal_(1, std=0.5)",
    "h + torch.empty(len(h), 4).uniform_(-1, 1)",
    "h + h.detach().clone().exponential_()",
    "h * torch.empty_like(h).bernoulli_(0.3)",
    "h * torch.empty_like(h).bernoulli_(h.detach().sigmoid())",
    "h * torch.empty_like(h).bernoulli_(p=h.detach().sigmoid())",
    "h + torch.empty_like(h).random_(3)",
    "h + torch.empty_like(h).cauchy_().clamp(-1, 1)",
    "h + torch.empty_like(h).geometric_(0.5)",
    "h + torch.empty_like(h).log_normal_()",
    "h + torch.nn.init.normal_(torch.empty(4, len(h))).T",
    "h * torch.bernoulli(h.sigmoid())",
    "h * torch.bernoulli(input=h.sigmoid())",
    "h * h.sigmoid().bernoulli()",
    "h * h.detach().bernoulli(0.4)",
    "h * torch.bernoulli(h.detach(), 0.4)",
    "h * torch.bernoulli(h.detach(), p=0.4)",
    "h + torch.normal(h.detach(), h.detach().exp())",
    "h + torch.normal(h.detach(), 0.5)",
    "h + torch.normal(0.5, h.detach().exp())",
    "h + torch.normal(mean=h.detach(), std=h.detach().exp())",
    "h + torch.normal(h.detach(), std=h.detach().exp())",
    "h + torch.normal(h.detach(), std=0.5)",
    "h + torch.normal(h.detach(), self.bias.detach().exp())",
    "h + torch.normal(0.0, 1.0, (len(h), 4))",
    "h + torch.normal(0.0, 1.0, size=(len(h), 4))",
    "h + torch.normal(mean=0.0, std=1.0, size=(len(h), 4))",
    "h + torch.normal(mean=torch.zeros(len(h), 4), std=1.0)",
    "h * torch.multinomial(h.softmax(1), 4, replacement=True)",
    "h * h.softmax(1).multinomial(1)",
    "h * h.softmax(1).multinomial(num_samples=4)",
    "h * torch.multinomial(input=h.softmax(1), num_samples=1)",
    "h * torch.poisson(h.detach().exp())",
    "h * torch.distributions.Normal(h, 1.0).rsample()",
    "h * torch.distributions.Categorical(logits=h).sample()[:, None]",
    "h * torch.distributions.Bernoulli(logits=h).sample()",
    "h + F.gumbel_softmax(h, hard=True)",
    "F.dropout(h, 0.3)",
    "F.dropout(input=h, p=0.3, training=True)",
    "F.dropout1d(h[None], 0.3)[0]",
    "F.alpha_dropout(h, 0.3, True)",
    "F.rrelu(h, training=True)",
    "h[torch.randperm(len(h))]",
    "h + self.bias * torch.rand(4)",
    "h + torch.randn(4) * torch.rand(())",
    "h * torch.bernoulli(self.bias.sigmoid())",
    "h + torch.normal(self.bias.detach(), self.bias.detach().exp())",
    "F.scaled_dot_product_attention(h[:, :, None], h[:, :, None], h[:, :, None], dropout_p=0.4)[..., 0]",
    "F.scaled_dot_product_attention(h[:, :, None], h[:, :, None], h[:, :, None], torch.eye(4) < 1, 0.4)[..., 0]",
    "F.scaled_dot_product_attention(h[:, :, None], h[:, :, None], h[:, :, None], torch.eye(4), 0.4)[..., 0]",
    "h + torch.rand(4, generator=self.generator)",
    "h + torch.rand(len(h), 4, generator=self.generator)",
    "h + torch.randn(4) * torch.randn(len(h))[:, None]",
    "h + (torch.rand_like(h) if len(h) == 2 else torch.randn_like(h))",
    "h + (torch.randn(4) if random.random() < 0.5 else torch.rand(len(h), 4))",
    "h * (torch.rand_like(h) if random.random() < 0.5 else 1) + (torch.rand(4) if random.random() < 0.5 else 0)",
]
"""Each of ``h``, (B, 4)."""
SETUP = """
import random
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(20, 3), torch.randn(20, 4)), batch_size=7, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bias = nn.Linear(3, 4), nn.Parameter(torch.randn(4))
        self.generator = torch.Generator().manual_seed(3)
    def forward(self, x):
        h = F.dropout(self.first(x), 0.1)
        return ({draw} if len(losses) >= {begins} else h) + self.bias
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
losses = []
"""
CELL = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
COMPARED = "losses, [*model.parameters()]"


def run_each(run: Run, setups: list[str]) -> list[dict[str, Any]]:
    return [run_notebook(run, setup, CELL, COMPARED, OPTIONS) for setup in setups]


def run_each_plain(run: Run, setups: list[str]) -> list[dict[str, Any]]:
    return [run_plain(run, setup, CELL, COMPARED) for setup in setups]


# On three ranks: shares that differ. What begins later is no part of what the first call shows.
@pytest.mark.parametrize(
    ("draws", "begins"),
    [
        (DRAWS[::2], 0),
        (DRAWS[1::2], 1),
        pytest.param(DRAWS[1::2], 0, marks=pytest.mark.long),
        pytest.param(DRAWS[::2], 1, marks=pytest.mark.long),
    ],
    ids=["half", "the rest, later", "the rest", "half, later"],
)
def test_draws_of_a_model_are_those_of_one_process(ranks, draws, begins):
    setups = [SETUP.replace("{draw}", draw).replace("{begins}", str(begins)) for draw in draws]
    (plain,) = ranks.call(1, run_each_plain, setups)
    wrong = []
    for draw, expected, *found in zip(draws, plain, *ranks.call(3, run_each, setups), strict=True):
        differences = [apart(expected[what], of_rank[what], 1e-9, what) for of_rank in found for what in ("compared", "random")]
        wrong += [f"{draw}: {different}" for different in differences if different]
    assert not wrong, "\n".join(wrong)


IN_ANOTHER_ORDER = "h * torch.rand(len(h))[:, None] * torch.rand(1) if losses else h * torch.rand(1) * torch.rand(len(h))[:, None]"
OF_WEIGHTS = "h @ F.dropout(torch.eye(4), 0.2) if losses else h"


@pytest.mark.parametrize("draw", [IN_ANOTHER_ORDER, OF_WEIGHTS])
def test_draws_in_another_order_are_noticed(ranks, draw):
    with pytest.raises(RankError, match="in another order than in its first call"):
        ranks.call(3, run_each, [SETUP.replace("{draw}", draw).replace("{begins}", "0")])
