"""BatchNorm and draws over the whole batch: values, gradients, gradients of gradients and running statistics are those of one process."""

from __future__ import annotations

import pytest

from tests.engine.ranks import Ranks, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

OPTIONS = {"global_batchnorm": True, "global_draws": True}
SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
loader = DataLoader(TensorDataset(torch.randn(26, 3, 4, 4) + 2, torch.randn(26, 1)), batch_size=8, shuffle=True)
conv = lambda *more: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), *more, nn.Flatten(), nn.Linear(16, 1))
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
MODELS = {
    "images": "conv(nn.BatchNorm2d(4), nn.Tanh())",
    "no affine map, no momentum": "conv(nn.BatchNorm2d(4, affine=False, momentum=None), nn.Tanh())",
    "no running statistics": "conv(nn.BatchNorm2d(4, track_running_stats=False), nn.Tanh())",
    "rows, dropped": "nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 1))",
    "sequences": "nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(48, 1))",
    "frozen": "conv(nn.BatchNorm2d(4).requires_grad_(False), nn.Tanh())",
}


def assert_as_plain(ranks: Ranks, setup: str, cell: str, compare: str, worlds: tuple[int, ...] = (2, 3)) -> None:
    (plain,) = ranks.call(1, run_plain, SETUP + setup, cell, compare)
    for world_size in worlds:
        for found in ranks.call(world_size, run_notebook, SETUP + setup, cell, compare, OPTIONS):
            for part in ("compared", "random"):
                assert apart(plain[part], found[part], 1e-9, f"{world_size} ranks: {part}") is None


@pytest.mark.parametrize("name", MODELS)
def test_training(ranks, name):
    assert_as_plain(ranks, f"model = {MODELS[name]}", TRAIN, "model.state_dict(), losses")


LATER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.p, self.calls, self.kept = nn.Linear(48, 5), nn.BatchNorm1d(5), {p}, 0, None
    def forward(self, x, y=None):
        self.calls += 1
        noise = random.random()
        out = F.dropout(noise * self.norm(self.linear(x.flatten(1))), self.p, self.training)
        {then}
        return out.sum(1, keepdim=True)
import random
model = Net()
"""
THEN = {
    "it returns its loss": "if y is not None: return F.mse_loss(out.sum(1, keepdim=True), y)",
    "it keeps a tensor": "if y is not None: self.kept = out.detach()",
    "it looks at a gradient": "if y is not None: out.retain_grad()",
    "its module is given a tensor": "if y is not None: self.norm.kept = out.detach()",
}
TRAIN_LATER = TRAIN.replace("model(x)", "(model(x) if epoch == 0 else call_later(x, y))")


@pytest.mark.parametrize("name", THEN)
def test_a_call_after_the_first_that_is_made_again_leaves_nothing(ranks, name):
    """Neither draws, in PyTorch's stream and in Python's, nor statistics, nor counts."""
    setup = LATER.format(p=0.3, then=THEN[name])
    setup += "def call_later(x, y):\n    out = model(x, y)\n    return out if out.dim() else out.view(1, 1) + 0 * y"
    assert_as_plain(ranks, setup, TRAIN_LATER, "model.state_dict(), losses, model.calls")


@pytest.mark.parametrize("then", ["", "out = out + (0.1 * torch.randn(len(out), 1) if self.p > 0.2 else 0)"])
def test_what_a_model_draws_may_begin_after_its_first_call(ranks, then):
    """As one process draws it, also when it ends again."""
    setup = LATER.format(p=0.0, then=then) + "p = iter([0, 0, 0.1, 0.2, 0.3, 0, 0.2, 0.4])"
    cell = TRAIN.replace("    for x, y in loader:\n", "    for x, y in loader:\n        model.p = next(p)\n")
    assert_as_plain(ranks, setup, cell, "model.state_dict(), losses, model.calls")
    # It begins on a batch of two samples, of which two ranks have none.
    assert_as_plain(ranks, setup.replace("0, 0, 0.1,", "0, 0, 0,"), cell, "model.state_dict(), losses, model.calls", worlds=(4,))


DRAWN = {
    "alpha dropout": "F.alpha_dropout(out, p, True)",
    "what reads values": "F.rrelu(out, 0.1, 0.1 + p, True)",
    "packed sequences": "self.packed(pack(out.unsqueeze(2), [3] * len(out), batch_first=True))[0].data.view(3, -1, 2).sum(0)",
    "no function of Python's": "torch.native_dropout(out, p, True)[0]",
    "a transform": 'torch.func.vmap(lambda row: F.dropout(row, p), randomness="different")(out)',
    "a seed of its own": "(torch.manual_seed(len(losses)), F.dropout(out, p))[1]",
}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_in_ways_that_are_not_followed_is_of_the_whole_batch(ranks, name, begun):
    """From the first call on, or beside what a model has drawn before."""
    setup = LATER.format(p=0.3, then=f"p = self.p\n        if self.begun: out = {DRAWN[name]}")
    setup += f"pack = nn.utils.rnn.pack_padded_sequence; losses, model.begun = [], {begun}\n"
    setup += "model.packed = nn.LSTM(1, 2, 2, dropout=0.4, batch_first=True)"
    cell = TRAIN.replace("    for x, y in loader:\n", "    model.begun |= epoch > 0\n    for x, y in loader:\n").replace("losses = []", "")
    assert_as_plain(ranks, setup, cell, "model.state_dict(), losses, model.calls")


def test_more_ranks_than_samples(ranks):
    """The last batch has two samples: two of four ranks have none of their own."""
    assert_as_plain(ranks, f"model = {MODELS['images']}", TRAIN, "model.state_dict(), losses", worlds=(4,))


def test_layers_that_do_not_train(ranks):
    cell = TRAIN.replace("model.train()", "model.train(); model[1].eval()")
    assert_as_plain(ranks, f"model = {MODELS['images']}", cell, "model.state_dict(), losses")


def test_gradients_of_gradients(ranks):
    cell = """
norms = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in loader:
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    penalty = slope.flatten(1).norm(dim=1).mean()
    optimizer.zero_grad()
    penalty.backward()
    optimizer.step()
    norms.append(penalty.item())
"""
    assert_as_plain(ranks, f"model = {MODELS['images']}", cell, "model.state_dict(), norms")


def test_one_sample_is_too_few_for_statistics_as_ever(ranks):
    setup = "model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, 1))\nloader = DataLoader(loader.dataset, batch_size=25)"
    cell = """
for x, y in loader:
    try:
        model(x)
    except ValueError as error:
        said = str(error)
"""
    assert_as_plain(ranks, setup, cell, "said", worlds=(2,))


def test_dims_that_two_could_be_and_noise_on_weights(ranks):
    """Batches of 8 on two ranks are parts of 4: the size of the features, and of the steps."""
    setup = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.out = nn.Linear(48, 1)
    def forward(self, x):
        x = x + 0.1 * torch.randn_like(x[:, :1])
        x = x @ (self.weight + 0.1 * torch.randn(4, 4))
        x = F.dropout(x.permute(2, 0, 1, 3), 0.2).permute(1, 2, 0, 3)
        return self.out(x.flatten(1))
model = Net()
"""
    assert_as_plain(ranks, setup, TRAIN, "model.state_dict(), losses, torch.rand(1)")


def test_draws_that_differ_between_ranks_are_found_and_told(ranks):
    setup = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.calls = nn.Linear(48, 1), 0
    def forward(self, x):
        x = x + torch.randn(len(x), 1, 1, 1)
        return self.out(F.dropout(x, 0.2).flatten(1)) if x.sum() > SUM or self.calls_are_few() else self.out(x.flatten(1))
    def calls_are_few(self):
        Net.number = getattr(Net, "number", 0) + 1
        return Net.number < 3
SUM = 1e9
model = Net()
"""
    cell = "from jupyter_dtrain import api\nSUM = [1e9, 0.0][api.current.rank]\n" + TRAIN
    found = ranks.call(2, run_notebook, SETUP + setup, cell, "len(losses), x.shape", OPTIONS)
    assert [rank["compared"][0] for rank in found] == [8, 8]
    assert any("differed between ranks" in note for note in found[0]["notes"])


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(48, 5), nn.Linear(5, 1)
        self.block = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2))
    def forward(self, x):
        h = self.first(x.flatten(1))
        {said}
        h = h + checkpoint(self.block, h, use_reentrant={reentrant})
        return self.last({last})
model, fixed = Net(), torch.randn(5, 3, 4, 4, requires_grad=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
def once(x):
    return checkpoint(model.block, model.first(x.flatten(1)), use_reentrant={reentrant}).mean()
"""
FORWARDS = {
    "once": "model(x)",
    "and what all ranks have": "model(x) + model(fixed).mean()",
    "what all ranks have, and": "model(fixed).mean() + model(x)",
    "a part of it": "model(x).mean() + model(x[:3]).mean()",
    "of the model": "checkpoint(model, x, use_reentrant=False) + model(fixed).mean()",
    "of the block": "once(x) + model(fixed).mean() + model(x)",
    "of the block, and what all have": "once(x) + once(fixed) + once(x[:2])",
}


KINDS = [
    pytest.param(kind, marks=pytest.mark.long if kind in ("twice", "open") else ()) for kind in ("learned", "twice", "open", "open, twice")
]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORWARDS)
def test_statistics_that_are_computed_again_are_those_of_their_call(ranks, name, kind, reentrant):
    if name == "of the model" and "open" in kind:
        pytest.skip("a model that prints is learned of within the checkpointed call, which is an error of PyTorch's")
    said = "print(len(x))" if "open" in kind else ""
    setup = CHECKPOINTED.format(said=said, last="self.block(h)" if "twice" in kind else "h", reentrant=reentrant)
    cell = """
for x, y in loader:
    loss = F.mse_loss(torch.tanh({}).mean() + torch.zeros_like(y), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
    assert_as_plain(ranks, setup, cell.format(FORWARDS[name].format(reentrant=reentrant)), "model.state_dict(), losses, fixed.grad")
