"""Models that take statistics of their batch inside: they see the global one, and others stay on the share."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_dtrain.engine.cell import run_cell
from tests.conftest import in_turn
from tests.engine.ranks import Ranks, Run, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import operator
import random
from functools import partial
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(20, 3), torch.randn(20, 2)), batch_size=8)

def steps_of(x):
    return x.detach().abs().amax() / 127

def divided_by(inside):
    return lambda x: x / inside(x)

class Spread:
    def __init__(self, dim):
        self.dim = dim
    def of(self, x):
        return x.std(self.dim, keepdim=True)

class Whole:
    @staticmethod
    def share(x):
        return x.sum(0) / len(x)
    def rest(self, x):
        return self.share(x) * 0.5
whole = Whole()

def whitening(x):
    x = x - sum(x) / len(x)
    return torch.linalg.cholesky(torch.linalg.inv(x.mT @ x / len(x)))

class Inner(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(3, 6), nn.Linear(6, 2), nn.BatchNorm1d(6)
        self.layer = layer
    def forward(self, x):
        return self.b(self.inside(self.a(x)))

class Net(Inner):
    def inside(self, x):
        {inside}

model = nn.Sequential(Net({layer}), nn.Tanh())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
CELL = """
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
MIXING = {
    "quantized by the largest": "step = x.detach().abs().max() / 127\n        return x + (torch.round(x / step) * step - x).detach()",
    "quantized in a function": "step = steps_of(x)\n        return x + (torch.round(x / step) * step - x).detach()",
    "BatchNorm of parts of the batch": "return torch.cat([self.norm(torch.tanh(part)) for part in x.chunk(max(1, len(x) // 4))])",
    "a spread of the batch": "return x + x.std(0).mean()",
    "centred": "return x - x.mean(0, keepdim=True)",
    "behind BatchNorm": "x = self.norm(x)\n        return x / x.pow(2).sum()",
    "a softmax over samples": "return x * F.softmax(x.sum(1), dim=0)[:, None]",
    "behind dropout": "x = F.dropout(x, 0.3)\n        return x / x.abs().max()",
    "noise by the spread of the batch": "return x + torch.randn_like(x) * x.std(0)",
    "behind attention with dropout": "h = x[None]\n        return x - F.scaled_dot_product_attention(h, h, h, dropout_p=0.2)[0].mean(0)",
    "samples turned round": "return x - 0.1 * x.flip(0)",
    "samples shuffled": "return x + 0.1 * x[torch.randperm(len(x))]",
    "samples in an order of NumPy's": "return x + 0.1 * x[torch.from_numpy(np.random.permutation(len(x)))]",
    "samples in an order of Python's": "return x + 0.1 * x[random.sample(range(len(x)), len(x))]",
    "noise of NumPy's for each sample": "return x + torch.from_numpy(np.random.rand(len(x), 1)).to(x.dtype)",
    "a number of Python's for each sample": "return x * torch.tensor([random.random() for _ in x])[:, None]",
    "attention between samples": "return torch.softmax(x @ x.T, 1) @ x",
    "similarities summed up": "return x * torch.einsum('bi,ci->b', x, x)[:, None]",
}
APART = {
    "a mean of each sample": "return x - x.mean(1, keepdim=True)",
    "the largest of each sample": "return F.relu(x) * x.max(dim=1).values[:, None]",
    "BatchNorm": "return self.norm(x) + x.mean(1, keepdim=True)",
    "dropout": "return F.dropout(x, 0.5) + x.mean(1, keepdim=True)",
    "dropout of channels": "return F.dropout1d(x, 0.5) + F.normalize(x, dim=1)",
    "noise and its size": "noise = torch.randn(len(x), 6) * torch.randn(6)\n        return x + noise / noise.norm(dim=1, keepdim=True)",
    "noise on weights": "return x @ torch.randn(6, 6) + x.max(1, keepdim=True).values",
    "columns": "return x.view(x.shape[0], -1) - x[:, :1] + x[..., 0, None]",
    "a part of several": "halves = [x[:, :3], x[:, 3:]]\n        return torch.cat([halves[1], halves[0]], 1)",
    "one number of NumPy's and of Python's for all": "return F.gelu(x) * np.random.beta(0.5, 0.5) + random.random()",
    "no word of it": "return F.gelu(x)",
}
WORDLESS_MIXING = {
    "a sum of a loop": "return x - sum(x) / len(x)",
    "by the number of samples": "return x / x.size(0)",
    "by their place": "return x + 0.1 * torch.arange(len(x))[:, None].to(x)",
    "one after the other": "s = 0\n        return torch.stack([s := 0.5 * s + row for row in x])",
    "in a method of a class by name": "return x - Whole.share(x)",
    "in a method of an object by name": "return x - whole.rest(x)",
    "those that are among three": "return x * (x[:, :1] >= x[:, 0].topk(min(3, len(x))).values[-1])",
    "from so many on": "return F.normalize(x, dim=0) if len(x) >= 6 else x",
    "by a name in a text": "return x - getattr(x, 'me' + 'an')(0)",
    "by an operator": "return operator.matmul(x, operator.matmul(x.mT, x)) / 10",
    "whitened, which two samples cannot be": "return torch.cat([x[:, 2:], x[:, :2] @ whitening(x[:, :2])], 1)",
}
"""No word of it is one of statistics, or stands where the model's code leads to by plain functions."""
ROWS_MIXING = {
    "less the first sample": "return x - x[0]",
    "each beside the next": "return x - 0.1 * torch.cat([x[1:], x[:1]])",
    "picked by name": "return x - x.index_select(0, torch.zeros(len(x), dtype=torch.long))",
}
LAYERS_MIXING = {
    "an LSTM that is given the batch first": ("nn.LSTM(2, 2)", "return self.layer(x.view(len(x), 3, 2))[0].flatten(1)"),
    "a GRU that is given a table": ("nn.GRU(6, 6)", "return self.layer(x)[0]"),
    "states of both directions taken for rows": (
        "nn.GRU(2, 3, bidirectional=True, batch_first=True)",
        "return self.layer(x.view(len(x), 3, 2))[1].reshape(len(x), 6)",
    ),
    "attention that is given the batch first": (
        "nn.TransformerEncoderLayer(2, 1, 4, dropout=0.2)",
        "return self.layer(x.view(len(x), 3, 2)).flatten(1)",
    ),
    "a layer's softmax over samples": ("nn.Softmax(dim=0)", "return x * self.layer(x)"),
}
LAYERS_APART = {
    "an LSTM with the batch first": ("nn.LSTM(2, 2, batch_first=True)", "return self.layer(x.view(len(x), 3, 2))[0].flatten(1)"),
    "an LSTM with time first": ("nn.LSTM(6, 6, 2, dropout=0.2)", "return self.layer(x[None])[0][0]"),
    "attention with the batch first": (
        "nn.TransformerEncoderLayer(2, 1, 4, batch_first=True)",
        "return self.layer(x.view(len(x), 3, 2)).flatten(1)",
    ),
    "a layer's softmax over features": ("nn.Softmax(dim=1)", "return x * self.layer(x)"),
}
AS_MANY_STEPS = {
    "a GRU": ("nn.GRU(4, 4)", "layer"),
    "an LSTM of two layers": ("nn.LSTM(4, 4, 2)", "layer"),
    "an LSTM of both directions": ("nn.LSTM(4, 2, bidirectional=True)", "layer"),
    "an LSTM with as many layers": ("nn.LSTM(4, 4, 4, batch_first=True)", "layer"),
    "what a GRU comes to": ("nn.GRU(4, 4)", "of(lambda x: layer(x)[0])"),
    "its states": ("nn.GRU(4, 4, 4)", "of(lambda x: layer(x)[1])"),
    "its states by samples": ("nn.GRU(4, 4, 4)", "of(lambda x: layer(x)[1].transpose(0, 1))"),
    "its last step": ("nn.GRU(4, 4)", "of(lambda x: layer(x)[0][-1])"),
    "steps first": ("nn.GRU(4, 4, 4)", "of(lambda x: layer(x.transpose(0, 1)))"),
    "a GRU after a layer": ("nn.GRU(4, 4)", "nn.Sequential(nn.Linear(4, 4), layer)"),
    "attention": ("nn.MultiheadAttention(4, 2)", "of(lambda x: layer(x, x, x))"),
    "an encoder": ("nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2)", "layer"),
    "samples last": ("nn.Linear(4, 4)", "of(lambda x: layer(x).permute(1, 2, 0))"),
    "step by step": ("nn.GRUCell(4, 4)", "of(lambda x: torch.stack([layer(x[:, step]) for step in range(4)]))"),
}
"""A layer, and the model that has it. It is given (8, 4, 4): on two ranks no size tells samples from steps or features."""
KEPT_MIXING = {
    "a function": ("lambda x: x.mean(0)", "return x - self.layer(x)"),
    "a function from around another": ("divided_by(lambda x: x.abs().max())", "return self.layer(x)"),
    "a part of a function": ("partial(lambda dim, x: x.std(dim), 0)", "return x + self.layer(x)"),
    "functions in a list": ("[torch.tanh, lambda x: F.softmax(x, 0)]", "return self.layer[1](self.layer[0](x))"),
    "an object": ("Spread(0)", "return x + self.layer.of(x)"),
}
KEPT_APART = {
    "a function": ("lambda x: x.mean(1, keepdim=True)", "return x - self.layer(x)"),
    "a function from around another": ("divided_by(lambda x: 2 + torch.tanh(x))", "return self.layer(x)"),
    "an object": ("Spread(1)", "return x + self.layer.of(x)"),
}


def setup(inside: str, layer: str = "nn.Identity()") -> str:
    return SETUP.replace("{inside}", inside).replace("{layer}", layer)


@pytest.mark.parametrize(("name", "world_size"), in_turn([*MIXING, *APART], [2, 3]))
def test_results_are_those_of_one_process(ranks, name, world_size):
    assert_same(ranks, setup({**MIXING, **APART}[name]), world_size)


@pytest.mark.parametrize("name", [*LAYERS_MIXING, *LAYERS_APART])
def test_layers_that_go_along_the_batch_do_so_along_all_of_it(ranks, name):
    layer, inside = {**LAYERS_MIXING, **LAYERS_APART}[name]
    assert_same(ranks, setup(inside, layer).replace("norm", "scale"), 3)  # `norm` is a word of statistics


@pytest.mark.parametrize("name", AS_MANY_STEPS)
def test_samples_of_a_rank_that_are_as_many_as_steps_are_not_taken_for_these(ranks, name):
    layer, model = AS_MANY_STEPS[name]
    setup = f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Of(nn.Module):
    def __init__(self, function): super().__init__(); self.layer, self.function = layer, function
    def forward(self, x): return self.function(x)
of, layer = Of, {layer}
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 4, 4)), batch_size=8)
found = []
"""
    cell = """
for (x,) in loader:
    results = model(x)
    results = torch.utils._pytree.tree_leaves(results)
    loss = sum((result * torch.arange(result.numel()).view(result.shape).cos()).sum() for result in results)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    found.append((loss.item(), [tuple(result.shape) for result in results]))
"""
    (plain,) = ranks.call(1, run_plain, setup, cell, "found")
    first, *_ = ranks.call(2, run_notebook, setup, cell, "found", {"global_draws": True})
    assert apart(plain["compared"], first["compared"], 1e-5) is None


@pytest.mark.parametrize("name", WORDLESS_MIXING)
def test_no_word_is_needed(ranks, name):
    assert_same(ranks, setup(WORDLESS_MIXING[name]), 2)


@pytest.mark.parametrize("name", ROWS_MIXING)
def test_samples_that_are_taken_out_are_those_of_the_batch(ranks, name):
    assert_same(ranks, setup(ROWS_MIXING[name]).replace("norm", "scale"), 3)  # `norm` is a word of statistics


# What is drawn in an attention between samples is not told apart where each engine has one.
ALONE = [name for name in (*MIXING, *APART) if name != "behind attention with dropout"]


@pytest.mark.parametrize("name", KEPT_MIXING)
def test_what_a_model_keeps_and_calls_is_looked_at_too(ranks, name):
    layer, inside = KEPT_MIXING[name]
    assert_same(ranks, setup(inside, layer).replace("norm", "scale"), 3)  # `norm` is a word of statistics


@pytest.mark.parametrize(("name", "batch_size"), in_turn(ALONE, [2, 3]))
def test_a_sample_for_each_engine(ranks, name, batch_size):
    code = setup({**MIXING, **APART}[name]).replace("batch_size=8", f"batch_size={batch_size}")
    assert_same(ranks, code, 2)


def test_a_scripted_model_that_mixes_samples(ranks):
    code = setup("return x - x.mean(0, keepdim=True)")
    assert_same(
        ranks,
        code.replace("nn.Sequential(Net(nn.Identity()), nn.Tanh())", "torch.jit.script(nn.Sequential(Net(nn.Identity()), nn.Tanh()))"),
        3,
    )


def assert_same(ranks: Ranks, code: str, world_size: int) -> None:
    arguments = code, CELL, "losses, model.state_dict()"
    expected: Any = ranks.call(1, run_plain, *arguments)[0]["compared"]
    for found in ranks.call(world_size, run_notebook, *arguments, {"global_draws": True, "global_batchnorm": True}):
        assert not apart(found["compared"], expected)


def opened(run: Run, inside: str, global_draws: bool = True, layer: str = "nn.Identity()") -> list[str]:
    """Return the classes of the models whose code ran on the global batch."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(setup(inside, layer), "setup", namespace)
    training = run.training(namespace["model"], global_draws=global_draws, global_batchnorm=True)
    with training.installed():
        run_cell(CELL, "cell", namespace)
    return sorted(type(model).__name__ for model, called in training._models.known.infos() if called.is_open)


def test_only_what_mixes_samples_is_run_on_the_global_batch(ranks):
    for name, inside in MIXING.items():
        assert ranks.call(2, opened, inside) == [["Net", "Sequential"]] * 2, name
    for name, inside in APART.items():
        assert ranks.call(2, opened, inside) == [[]] * 2, name
    for name, (layer, inside) in [*LAYERS_APART.items(), *KEPT_APART.items()]:
        assert ranks.call(2, opened, inside, True, layer) == [[]] * 2, name


def test_a_batch_that_has_no_room_on_one_rank_is_told_by_the_last_samples(ranks):
    refuses = "if len(x) == 8 and type(x) is torch.Tensor: raise MemoryError('no room')\n        "
    assert ranks.call(2, opened, f"{refuses}return x - x[:1]") == [["Net", "Sequential"]] * 2
    assert ranks.call(2, opened, f"{refuses}return x - 1") == [[]] * 2


CALLED = """
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout={dropped}, batch_first=True)
        self.out, self.last = nn.Linear(4, 2), {last}
    def forward(self, x):
        note(len(x))
        y = self.out(self.layer(x[:, :, None].expand(-1, -1, 4)))[:, 0]
        {statistic}
        return self.last(y)
calls = []
exec("def note(size): calls.append(size)")  # as of a library
model = Counts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""


@pytest.mark.parametrize(
    ("dropped", "statistic", "last", "looks"),
    [
        (0.0, "", "nn.Identity()", [2, 12]),
        (0.1, "", "nn.Identity()", [2, 12]),  # with the masks of the first call
        (0.1, "largest = y.max(1).values > 1e9", "nn.Identity()", [2, 12]),
        (0.0, "", "nn.BatchNorm1d(2)", [6, 2, 12, 6]),  # without the batch's statistics, of which it is known that they mix
    ],
)
def test_what_a_first_call_has_come_to_is_not_computed_again(ranks, dropped, statistic, last, looks):
    code = SETUP.replace("batch_size=8", "batch_size=12").partition("def steps_of")[0]
    code += CALLED.format(dropped=dropped, statistic=statistic, last=last)
    for found in ranks.call(2, run_notebook, code, CELL, "calls", {"global_draws": True, "global_batchnorm": True}):
        assert found["compared"] == [6, *looks, 4]


@pytest.mark.long
def test_what_a_later_call_makes_is_no_state(ranks):
    code = setup("return nn.Sequential(nn.Softmax(1), nn.LeakyReLU(0.2))(x)")
    made = "nn.Sequential(Net(nn.Identity()), nn.Tanh())"
    assert made in code
    for tried in (code, code.replace(made, "torch.compile(Net(nn.Identity()), backend='aot_eager')")):
        assert_same(ranks, tried, 2)  # it would end with `KeepsState`, as dynamo makes modules of the graphs that it compiles


def test_so_it_is_where_each_rank_draws_for_itself(ranks):
    for name in ("behind dropout", "noise by the spread of the batch"):
        assert ranks.call(2, opened, MIXING[name], False) == [["Net", "Sequential"]] * 2, name
    for name in ("dropout", "dropout of channels", "noise and its size"):
        assert ranks.call(2, opened, APART[name], False) == [[]] * 2, name


def test_a_layer_that_takes_the_batch_for_a_sequence_is_told_of(ranks):
    layer, inside = LAYERS_MIXING["an LSTM that is given the batch first"]
    (note,) = ranks.call(2, run_notebook, setup(inside, layer), CELL, "losses", {"global_batchnorm": True})[0]["notes"]
    assert note.startswith(
        "The `LSTM` (line 46, in Net.inside) treats the batch as a sequence (with `batch_first=True` it treats each sample as one)"
    )


FILLED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
class Filling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x, kept=None, named=None, deep=None):
        y = self.layer(x)
        if kept is not None: kept.append(y)
        if named is not None: named[len(named)] = y
        if deep is not None: deep["lists"][-1].append(y)
        return y
model = Filling()
X = torch.randn(8, 3)
loader = DataLoader(TensorDataset(X), batch_size=4)
"""
FILL = """
kept, named, deep, aside = [], {}, {"lists": [[], []]}, []
same = deep["lists"][1]
model(X, kept, named=named, deep=deep)
with torch.no_grad(): model(X[:5], kept)
for (x,) in loader:
    model(x, kept, named=named)
    model(X.sum() + (x - x.detach()).sum() + X, aside, deep=deep)
sums = [[value.sum().item() for value in values] for values in (kept, named.values(), aside, *deep["lists"])]
sums.append(same is deep["lists"][1])
"""


def test_what_a_model_puts_into_a_list_of_the_cell_is_there(ranks):
    """On a share of a batch, and on what every rank has whole, which a cache of keys in evaluation is made of."""
    expected = ranks.call(1, run_plain, FILLED, FILL, "sums")[0]["compared"]
    assert [len(part) for part in expected[:5]] == [4, 3, 2, 0, 3]
    for found in ranks.call(2, run_notebook, FILLED, FILL, "sums", {"global_draws": True, "global_batchnorm": True}):
        assert not apart(found["compared"], expected)
