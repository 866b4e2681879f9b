"""Linear layers that belong together, the first by columns and the second by rows: what cells do comes to what one process comes to."""

# ruff: noqa: E501  # cells as they are

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.strategies.tensor_parallel.column_parallel import Columns
from jupyter_dtrain.engine.strategies.tensor_parallel.rules import pairs_of
from jupyter_dtrain.system.patches import patched
from tests.engine.ranks import RankError, Run
from tests.engine.test_tensor_groups import check as check_groups
from tests.engine.test_tensor_parallel import check, run_divided, some
from tests.engine.transformers_layers import ATTENTION, GPT2, LLAMA
from tests.engine.zero3_cells import HEAD, IDIOMS, LOOP, STATE

DATA = """
X, Y = torch.randn(24, 5, 8), torch.randint(0, 10, (24, 5))
loader = DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)
losses = []
"""
CACHED = """
class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = LlamaAttention(8), nn.Linear(8, 10)
    def forward(self, x, cache=None):
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 1.0])
        return self.head(self.attention(x, (angles.cos(), angles.sin()), past_key_values=cache))
"""
PLANNED = """
class Config:
    base_model_tp_plan = {"layers.*.mlp.wide": "colwise", "layers.*.mlp.narrow": "rowwise", "layers.*.attention": "sequence_parallel"}
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.act, self.narrow, self.dropout = nn.Linear(8, 22), nn.GELU(), nn.Linear(22, 8), nn.Dropout(0.2)
    def forward(self, x):
        return self.dropout(self.narrow(self.act(self.wide(x))))
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), MLP()
    def forward(self, x):
        return x + self.mlp(self.norm(x))
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.layers = Config(), nn.ModuleList(Layer() for _ in range(2))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x
class Net(nn.Module):
    _tp_plan = {"head": "colwise_rep"}
    def __init__(self):
        super().__init__()
        self.config, self.model, self.head = Config(), Base(), nn.Linear(8, 10)
    def forward(self, x):
        return self.head(self.model(x))
"""
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"


def model(text: str, before: str = "") -> str:
    return f"{HEAD}{DATA}{before}\nmodel = {text}\n{OPTIMIZER}"


DROPPED = "nn.Sequential(nn.Linear(8, 22), nn.Dropout(0.3), nn.SiLU(), nn.Dropout(0.2, inplace=True), nn.Linear(22, 10))"
MODELS = {
    "Sequential": model(DROPPED),
    "gated": model("nn.Sequential(LlamaMLP(8, 21), nn.LayerNorm(8), LlamaMLP(8, 20), nn.Linear(8, 10))", LLAMA),
    "encoder": model(
        "nn.Sequential(nn.TransformerEncoderLayer(8, 2, 23, 0.2, 'gelu', batch_first=True, norm_first=True), nn.Linear(8, 10))"
    ),
    "no bias": model("nn.Sequential(nn.TransformerEncoderLayer(8, 2, 24, 0.1, nn.Mish(), batch_first=True, bias=False), nn.Linear(8, 10))"),
}
DECODER = model(
    "Net()",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerDecoderLayer(8, 2, 23, 0.2, batch_first=True), nn.Linear(8, 10)
    def forward(self, x):
        return self.head(self.layer(x, x * 2))
""",
)
MODELS["decoder"] = DECODER
MODELS["planned"] = model("Net()", PLANNED)
MODELS["attention"] = model("nn.Sequential(LlamaAttention(8), nn.LayerNorm(8), LlamaAttention(8, 0.3), nn.Linear(8, 10))", ATTENTION)
MODELS["GPT-2"] = model("nn.Sequential(Block(8), nn.LayerNorm(8), Block(8), nn.Linear(8, 10))", GPT2)
MODELS["weight_norm"] = MODELS["gated"].replace("optimizer =", "nn.utils.parametrizations.weight_norm(model[2].down_proj)\noptimizer =")


@contextmanager
def exchanged() -> Iterator[list[tuple[str, int]]]:
    """Note what layers exchange: how, and how many numbers along its last dim all of it has."""
    found: list[tuple[str, int]] = []
    all_of, total = Columns.all_of, Columns.total

    def gathered(columns: Columns, local: torch.Tensor, dim: int) -> torch.Tensor:
        result = all_of(columns, local, dim)
        found.append(("gather", result.shape[-1]))
        return result

    def added_up(columns: Columns, local: torch.Tensor) -> torch.Tensor:
        found.append(("reduce", local.shape[-1]))
        return total(columns, local)

    with patched(Columns, "all_of", gathered), patched(Columns, "total", added_up):
        yield found


def count(run: Run, setup: str, cell: str) -> list[tuple[str, int]]:
    with exchanged() as found:
        run_divided(run, setup, cell, "None")
    return found


ONE_STEP = "F.cross_entropy(model(X).flatten(0, -2), Y.flatten()).backward()\n"


def test_a_pair_exchanges_one_sum_each_way(ranks):
    setup = model("nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 22), nn.GELU(), nn.Dropout(0.1), nn.Linear(22, 10))")
    assert ranks.call(2, count, setup, ONE_STEP) == [[("reduce", 10), ("reduce", 8)]] * 2


def test_two_layers_that_are_given_the_same_exchange_one_gradient_of_it(ranks):
    setup = model("nn.Sequential(nn.LayerNorm(8), LlamaMLP(8, 20), nn.LayerNorm(8))", LLAMA).replace("(0, 10,", "(0, 8,")
    assert ranks.call(2, count, setup, ONE_STEP) == [[("reduce", 8), ("reduce", 8)]] * 2


def test_attention_by_heads_exchanges_one_sum_each_way(ranks):
    setup = model("nn.Sequential(nn.LayerNorm(8), LlamaAttention(8), nn.LayerNorm(8))", ATTENTION).replace("(0, 10,", "(0, 8,")
    assert ranks.call(2, count, setup, ONE_STEP) == [[("reduce", 8), ("reduce", 8)]] * 2
    assert ("gather", 24) in ranks.call(4, count, setup, ONE_STEP)[0]  # 6 heads of keys


def test_a_cache_gets_all_heads(ranks):
    setup = model("Cached()", ATTENTION + CACHED)
    check(ranks, 2, setup, LOOP + "cache = []\nlosses += [model(X, cache).sum().item(), cache[0].shape[1], cache[0].sum().item()]\n")


def test_a_plan_of_a_class_makes_pairs(ranks):
    found = ranks.call(2, count, MODELS["planned"], ONE_STEP)[0]
    assert found == [("reduce", 8), ("reduce", 8), ("gather", 10), *[("reduce", 8)] * 3]


@pytest.mark.parametrize(
    ("kind", "num_ranks"), some([("Sequential", 2), ("gated", 3), ("planned", 3), ("attention", 3), ("GPT-2", 2)], MODELS, (2, 3, 4))
)
def test_training_with_pairs(ranks, kind, num_ranks):
    check(ranks, num_ranks, MODELS[kind], LOOP)


@pytest.mark.parametrize("kind", some([("encoder",)], MODELS))
def test_training_with_pairs_in_groups(ranks, kind):
    check_groups(ranks, MODELS[kind], LOOP)


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", IDIOMS)
def test_cell_with_pairs(ranks, name, kind):
    check(ranks, 2, MODELS[kind], IDIOMS[name])


INNER = "next(m for m in model.modules() if isinstance(m, nn.Linear))"
LOOKS = {
    "a forward hook": f"h = {INNER}.register_forward_hook(lambda m, i, o: losses.append(o.sum().item()))\n",
    "a hook of the second layer": "h = model[-1].register_forward_pre_hook(lambda m, i: losses.append(i[0].sum().item()))\n",
    "a hook of dropout": "h = model[1].register_forward_hook(lambda m, i, o: losses.append(o.std().item()))\n",
    "a hook of gradients": f"h = {INNER}.register_full_backward_hook(lambda m, i, o: losses.append(o[0].norm().item()))\n",
    "a hook of all modules": "h = nn.modules.module.register_module_forward_hook(lambda m, i, o: losses.append(o.std().item()))\n",
    "a hook of a weight": "h = model[-1].weight.register_hook(lambda g: losses.append(g.norm().item()))\n",
}
MODE = """
from torch.overrides import TorchFunctionMode
class Sums(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (F.linear, F.relu): losses.append(result.sum().item())
        return result
with Sums(): model.eval()(X)
model.train()
"""
SAVED = """
sums = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: sums.append(t.detach().double().sum().item()) or t, lambda t: t):
    F.cross_entropy(model(X).flatten(0, -2), Y.flatten()).backward()
losses.append(sorted(round(s, 8) for s in sums if s))
"""
# fmt: off
CELLS = {
    **{name: f"{LOOP}{hook}{LOOP}h.remove()\n{LOOP}" for name, hook in LOOKS.items()},
    "a mode": LOOP + MODE,
    "what graphs keep": "for m in model: m.p = 0.0\n" + SAVED,
    "part of a block": f"{LOOP}losses.append(model[0](X).sum().item())\nlosses.append(model[:3].eval()(X).sum().item())\nmodel.train()\n",
    "a layer put in between": f"{LOOP}model.insert(1, nn.Softmax(-1))\n{LOOP}",
    "another layer": f"{LOOP}torch.manual_seed(1)\nmodel[0] = nn.Linear(8, 22)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{LOOP}",
    "prune": f"{LOOP}nn.utils.prune.l1_unstructured(model[-1], 'weight', 0.5)\n{LOOP}".replace("\n", "\nimport torch.nn.utils.prune\n", 1),
    "data": f"{LOOP}for p in model.parameters(): p.data = p.data * 0.5\n{LOOP}for p in model.parameters(): p.data[1:].mul_(2.0)\n{LOOP}",
    "gradients": f"{LOOP}g = model[-1].weight.grad\nlosses += [g.norm().item(), g[0].tolist(), (g * model[-1].weight).sum().item(), g.T.sum(0).tolist()]\n",
    "gradients with a graph": LOOP.replace("backward()", "backward(create_graph=True)"),
    "a penalty": LOOP.replace(
        "loss.backward()", "(loss + torch.autograd.grad(out.sum(), x.requires_grad_(), create_graph=True)[0].pow(2).sum()).backward()"
    ).replace("out = model(x)", "x.requires_grad_(); out = model(x)"),
    "recomputed": "from torch.utils.checkpoint import checkpoint\nX.requires_grad_()\n"
    + LOOP.replace("model(x)", "checkpoint(model, x * 1, use_reentrant=len(losses) % 2 == 0)"),
    "evaluation": f"{LOOP}model.eval()\nwith torch.no_grad(): losses.append(model(X).sum().item())\nwith torch.inference_mode(): model(X)\n",
    "frozen": f"model[-1].weight.requires_grad_(False)\n{LOOP}model[-1].weight.requires_grad_()\nmodel[0].requires_grad_(False)\n{LOOP}",
    "tied": f"{LOOP}model[0].weight = nn.Parameter(model[-1].weight.data.new_ones(22, 8))\nmodel.append(nn.Linear(10, 22)); model.append(nn.Linear(22, 10))\n"
    f"model[-1].weight = model[4].weight\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{LOOP}",
    "an error in between": f"{LOOP}try: model(X[..., :7])\nexcept RuntimeError: losses.append(1.0)\n{LOOP}",
    "state_dict": f"{LOOP}s = {{k: v.clone() for k, v in model.state_dict().items()}}\n{LOOP}losses += [v.sum() for v in s.values()]\nmodel.load_state_dict(s)\n{LOOP}",
    "a large optimizer": f"optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01)\n{IDIOMS['LBFGS all']}"
    if "LBFGS all" in IDIOMS
    else LOOP,
}
# fmt: on
SHORT = ("a forward hook", "a hook of the second layer", "a layer put in between", "recomputed", "gradients", "data")


@pytest.mark.parametrize("name", some([(name,) for name in SHORT], CELLS))
def test_whoever_looks_sees_what_one_process_has(ranks, name):
    check(ranks, 2, MODELS["Sequential"], CELLS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", CELLS)
def test_whoever_looks_sees_what_one_process_has_in_groups(ranks, name):
    check_groups(ranks, MODELS["Sequential"], CELLS[name], STATE)


@pytest.mark.parametrize(
    "forward",
    [
        "self.up_proj(x); self.gate_proj(x); return x * 2",
        "self.gate_proj(x); return self.down_proj(x)",
        "self.gate_proj(x); return self.up_proj(x[..., :7])",
        "return self.down_proj(self.other(self.gate_proj(x)))",
    ],
)
def test_a_class_that_does_not_do_what_its_rule_says_is_refused(ranks, forward):
    setup = MODELS["gated"].replace("return self.down_proj(", f"{forward}\n        return self.down_proj(")
    setup = setup.replace("self.act_fn = nn.SiLU()", "self.act_fn, self.other = nn.SiLU(), nn.Tanh()")
    with pytest.raises(RankError, match="as a pair: the output of the first layer goes to the second"):
        ranks.call(2, run_divided, setup, LOOP, STATE)


class _Own(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(x) + 1
        return result


def _num_pairs(*parts: Any) -> int:
    return len(pairs_of(nn.Sequential(*parts)))


def test_which_layers_are_a_pair():
    """Softmax, GLU and PReLU go over neighbours or learn; a layer that is called twice has no one place; one's own class is not known."""
    one, two = nn.Linear(4, 8), nn.Linear(8, 4)
    assert _num_pairs(one, nn.GELU(), nn.Dropout(0.1), two) == 1
    assert _num_pairs(one, two, nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)) == 2
    for between in (nn.Softmax(-1), nn.GLU(), nn.PReLU(), nn.LayerNorm(8), nn.Sequential(nn.ReLU())):
        assert _num_pairs(one, between, two) == 0
    assert _num_pairs(two, one, nn.GELU(), one) == 0
    assert pairs_of(_Own(one, two)) == ()
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert len(pairs_of(layer)) == 1
    layer.activation = lambda x: x.softmax(-1)
    assert not pairs_of(layer)


def made(text: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(HEAD + text, namespace)
    return namespace[name](8, 16) if "MLP" in name else namespace[name](8)


@pytest.mark.parametrize(
    ("text", "name", "part", "other"),
    [
        (LLAMA, "LlamaMLP", "act_fn", nn.Softmax(-1)),
        (LLAMA, "LlamaMLP", "up_proj", None),
        (ATTENTION, "LlamaAttention", "v_proj", None),
        (ATTENTION, "LlamaAttention", "config", None),
        (ATTENTION, "LlamaAttention", "num_heads", 12),
        (GPT2, "GPT2MLP", "act", nn.Softmax(-1)),
        (GPT2, "GPT2MLP", "c_fc", nn.Linear(8, 16)),
        (GPT2, "GPT2Attention", "num_heads", None),
        (GPT2, "GPT2Attention", "is_cross_attention", True),
        (GPT2, "GPT2Attention", "split_size", None),
    ],
)
def test_a_layer_of_transformers_of_another_version_is_no_pair(text, name, part, other):
    module = made(text, name)
    assert len(pairs_of(module)) == 1
    setattr(module, part, other)
    assert not pairs_of(module)
