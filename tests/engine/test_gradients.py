"""Whatever the model, the loss, the batches and the shares: gradients are those of one process, and each sample is used once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from jupyter_dtrain.engine.tensor.batch_shard import share_of
from tests.engine.ranks import Ranks, Run, double_precision, run_notebook, run_plain
from tests.notebook.corpus_cells import apart


@dataclass(frozen=True)
class Problem:
    """A small training set-up, made anew from it on every rank."""

    model: str
    loss: str
    length: int
    batch_size: int
    drop_last: bool
    sampler: str
    speeds: tuple[float, ...]
    seed: int


class WithLoss(nn.Module):
    """Returns its loss beside its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = torch.tanh(self.a(x))
        return self.b(hidden), hidden.pow(2).mean(0).sum()


class OverTime(nn.Module):
    """A recurrent network that returns its hidden state, too."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 3, num_layers=2), nn.Linear(3, 3)

    def forward(self, x):
        outputs, hidden = self.rnn(x.t().unsqueeze(-1))
        return self.out(outputs[-1]), hidden


MODELS = {
    "linear": lambda: nn.Linear(3, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3)),
    "with loss": WithLoss,
    "over time": OverTime,
}
LOSSES = {
    "mean": lambda out, x, y: F.cross_entropy(out, y),
    "sum": lambda out, x, y: F.cross_entropy(out, y, reduction="sum"),
    "none": lambda out, x, y: F.cross_entropy(out, y, reduction="none").pow(2).mean(),
    "weights": lambda out, x, y: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 0.5])),
    "ignored": lambda out, x, y: F.cross_entropy(out, y, ignore_index=1),
    "smoothed": lambda out, x, y: F.cross_entropy(out, y, label_smoothing=0.2),
    "root": lambda out, x, y: torch.sqrt(F.mse_loss(out, x) + 1e-3),
    "divided": lambda out, x, y: F.l1_loss(out, x, reduction="sum") / x.size(0),
    "masked": lambda out, x, y: ((out - x).pow(2).sum(1) * (y > 0)).sum() / ((y > 0).sum() + 1),
    "centred": lambda out, x, y: (out - out.mean(0)).pow(2).mean() + out.std(unbiased=False),
    "pairs": lambda out, x, y: F.cross_entropy(out @ out.T, torch.arange(len(out))),
    "penalized": lambda out, x, y: F.mse_loss(out, x) + 0.1 * out.pow(2).sum() + out.abs().max(),
    "product": lambda out, x, y: F.mse_loss(out, x) * out.exp().mean() - out.logsumexp(0).sum(),
}


def accumulate(problem: Problem) -> tuple[dict[str, torch.Tensor], list[float], list[int]]:
    """Return the gradients of two epochs added up, each loss, and which samples were used."""
    torch.manual_seed(problem.seed)
    inputs, targets = torch.randn(problem.length, 3), torch.randint(0, 3, (problem.length,))
    dataset = TensorDataset(inputs, targets, torch.arange(problem.length))
    samplers: dict[str, dict[str, Any]] = {
        "in order": {},
        "shuffled": {"shuffle": True},
        "weighted": {"sampler": WeightedRandomSampler((torch.rand(problem.length) + 0.1).tolist(), problem.length)},
    }
    loader = DataLoader(dataset, batch_size=problem.batch_size, drop_last=problem.drop_last, **samplers[problem.sampler])
    model = MODELS[problem.model]()
    losses, used = [], []
    for _ in range(2):
        for x, y, index in loader:
            out = model(x)
            extra = 0.0
            if isinstance(out, tuple):
                out, rest = out
                extra = rest.pow(2).mean()
            loss = LOSSES[problem.loss](out, x, y) + extra
            loss.backward()
            losses.append(loss.item())
            used += index.tolist()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, losses, used


@double_precision()
def on_rank(run: Run, problem: Problem) -> tuple[object, list[int]]:
    """Return what comes out on this rank, and the samples that entered the model here."""
    training = run.training()
    training.shares.follow(problem.speeds)
    own: list[int] = []
    note = training._loaders._on_batch

    def on_batch(share, number, count):
        own.append(share.num_samples)
        note(share, number, count)

    with mock.patch.object(training._loaders, "_on_batch", on_batch), training.installed():
        found = accumulate(problem)
    return found, own


problems = st.integers(2, 4).flatmap(
    lambda world_size: st.builds(
        Problem,
        model=st.sampled_from(sorted(MODELS)),
        loss=st.sampled_from(sorted(LOSSES)),
        length=st.integers(1, 17),
        batch_size=st.integers(1, 9),
        drop_last=st.booleans(),
        sampler=st.sampled_from(["in order", "shuffled", "weighted"]),
        speeds=st.lists(st.sampled_from([0.2, 1.0, 1.5, 4.0]), min_size=world_size, max_size=world_size).map(tuple),
        seed=st.integers(0, 2**16),
    )
)


TRIED = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@TRIED
@given(problem=problems)
def test_the_gradient_is_that_of_one_process(ranks, problem):
    assert_gradient_of_one_process(ranks, problem)


@pytest.mark.long
@settings(TRIED, max_examples=200)
@given(problem=problems)
def test_the_gradient_is_that_of_one_process_for_many_more(ranks, problem):
    assert_gradient_of_one_process(ranks, problem)


def assert_gradient_of_one_process(ranks: Ranks, problem: Problem) -> None:
    with double_precision():
        expected = accumulate(problem)
    world_size = len(problem.speeds)
    results = ranks.call(world_size, on_rank, problem)
    for rank, (found, _) in enumerate(results):
        assert apart(expected, found, path=f"rank {rank}") is None
    grads, _, used = expected
    assert grads or not used
    if problem.sampler != "weighted" and not problem.drop_last:
        assert Counter(used) == dict.fromkeys(range(problem.length), 2)
    # What the ranks computed on, put together, is each batch once.
    assert sum(sum(own) for _, own in results) == len(used)


def test_shares_of_every_size_make_up_the_batch():
    for total in range(20):
        for speeds in ((1.0, 1.0), (0.2, 4.0, 1.0), (1.0,) * 7):
            parts = [
                list(range(total))[share_of(total, rank, speeds).start : share_of(total, rank, speeds).stop] for rank in range(len(speeds))
            ]
            assert [index for part in parts for index in part] == list(range(total))


WITHOUT_A_LOADER = """
import time
import torch
from torch import nn
x = torch.linspace(-1, 1, 30)[:, None]
y = torch.sin(7 * x)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
"""
CLOSURES = """
losses = []
def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y) {more}
    loss.backward()
    losses.append(loss.item())
    return loss
for epoch in range(3):
    optimizer.step(closure)
"""


def test_with_nothing_shared_out_not_even_the_rounding_differs(ranks):
    arguments = WITHOUT_A_LOADER, CLOSURES.format(more=""), "losses, model.state_dict()"
    (losses, weights) = ranks.call(1, run_plain, *arguments)[0]["compared"]
    for found in ranks.call(3, run_notebook, *arguments):
        assert found["compared"][0] == losses
        assert all(torch.equal(found["compared"][1][name], weight) for name, weight in weights.items())


def test_ranks_that_come_to_other_numbers_put_their_gradients_together(ranks):
    more = "* (1 + time.perf_counter() % 1e-3)"  # an integer would be the same by chance
    found = ranks.call(2, run_notebook, WITHOUT_A_LOADER.replace("LBFGS", "SGD"), CLOSURES.format(more=more), "model.state_dict()")
    first, second = (of_rank["compared"] for of_rank in found)
    assert all(torch.equal(first[name], second[name]) for name in first)
