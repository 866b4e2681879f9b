"""Attention of PyTorch's own modules by heads: what cells do with it comes to what one process comes to, on 2, 3 and 4 ranks."""

# ruff: noqa: E501  # cells as they are

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.ranks import Run
from tests.engine.test_tensor_groups import check as check_groups
from tests.engine.test_tensor_pairs import ONE_STEP, count
from tests.engine.test_tensor_parallel import check, run_divided, some
from tests.engine.zero3_cells import HEAD, IDIOMS, LOOP, MODELS

SETUP = """
X, Y = torch.randn(12, 5, 24), torch.randint(0, 10, (12, 5))
loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
losses = []
class Net(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(24, {heads}, **given), nn.Linear(24, 10)
        self.distance = nn.Parameter(torch.randn(5, 5))
    def forward(self, x):
        {before}
        out, seen = self.attention({call})
        {after}
        return self.head(out)
model = Net({options})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


def setup(call: str = "x, x, x", options: str = "batch_first=True", before: str = "pass", after: str = "pass", heads: int = 12) -> str:
    return HEAD + SETUP.format(call=call, options=options, before=before, after=after, heads=heads)


CAUSAL = "mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)"
PADDED = "padding = torch.zeros(x.shape[:2], dtype=torch.bool); padding[0, 3:] = True; padding[-1, 1:] = True"
USED = "out = out + seen.mean(tuple(range(1, seen.dim())))[:, None, None] * seen.flatten(1).std(1)[:, None, None]"
# fmt: off
CALLS = {
    "all of it": setup(after=USED),
    "without weights": setup("x, x, x, need_weights=False"),
    "the samples second": setup("x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1)", "", after="out = out.transpose(0, 1)"),
    "weights of each head": setup("x, x, x, average_attn_weights=False", after=f"losses.append(list(seen.shape)); {USED}"),
    "padding": setup("x, x, x, key_padding_mask=padding", before=PADDED, after=USED),
    "padding without weights": setup("x, x, x, key_padding_mask=padding, need_weights=False", before=PADDED),
    "a mask": setup("x, x, x, attn_mask=mask", before=CAUSAL, after=USED),
    "a mask of booleans and padding": setup("x, x, x, padding, attn_mask=mask", before=f"{PADDED}; mask = torch.ones(5, 5, dtype=torch.bool).triu(1)", after=USED),
    "causal": setup("x, x, x, attn_mask=mask, is_causal=True, need_weights=False", before=CAUSAL),
    "causal, with padding": setup("x, x, x, padding.double() * -9, False, mask, is_causal=True", before=f"{PADDED}; {CAUSAL}"),
    "a mask of each head": setup("x, x, x, attn_mask=mask", before="mask = torch.arange(len(x) * 12)[:, None, None] % 7 * 0.3 * torch.eye(5).expand(len(x) * 12, 5, 5)", after=USED),
    "a mask that learns": setup("x, x, x, attn_mask=self.distance, need_weights=False"),
    "a mask of each head that learns": setup("x, x, x, attn_mask=mask", before="mask = self.distance[None, None] * torch.linspace(0, 1, 12)[:, None, None] * x.mean((1, 2))[:, None, None, None]; mask = mask.flatten(0, 1)"),
    "others": setup("x, y, y", before="y = x[:, :3] * 2"),
    "three": setup("x, y, z, need_weights=False", before="y, z = x * 2, x.sin()"),
    "of other sizes": setup("x, y, z", "batch_first=True, kdim=6, vdim=10", before="y, z = x[..., :6], x[..., 4:14]", after=USED),
    "of another size without biases": setup("x, y, x", "batch_first=True, kdim=6, bias=False", before="y = x[..., :6]"),
    "no biases": setup(options="batch_first=True, bias=False"),
    "one sample": setup("x.flatten(0, 1), x.flatten(0, 1), x.flatten(0, 1)", after="losses.append(list(seen.shape)); out = out.view(x.shape)"),
    "one sample, no weights": setup("x.flatten(0, 1), y, y, need_weights=False", before="y = x[0] * 2", after="out = out.view(x.shape)"),
    "dropout": setup(options="dropout=0.3, batch_first=True", after=USED),
    "dropout without weights": setup("x, x, x, need_weights=False", "dropout=0.3, batch_first=True"),
    "dropout of all": setup("x, x, x, need_weights=False", "dropout=1.0, batch_first=True"),
    "dropout of what is causal": setup("x, x, x, padding, False, mask", "dropout=0.3, batch_first=True", before=f"{PADDED}; mask = torch.ones(5, 5, dtype=torch.bool).triu(1)"),
    "twice": setup(after="out, _ = self.attention(out, x, out)"),
    "frozen": setup() + "model.attention.in_proj_weight.requires_grad_(False)\n",
    "its own parameters": setup(before="w = self.attention.in_proj_weight.chunk(3); x = F.linear(x, w[0]) + F.linear(x, self.attention.in_proj_weight)[..., :24]"),
}
# fmt: on
SHORT = [
    ("all of it", 2),
    ("weights of each head", 3),
    ("padding without weights", 2),
    ("a mask of booleans and padding", 3),
    ("a mask of each head", 2),
    ("a mask of each head that learns", 2),
    ("of other sizes", 3),
    ("of another size without biases", 2),
    ("causal", 2),
    ("one sample", 2),
    ("dropout", 3),
    ("dropout of all", 2),
    ("dropout of what is causal", 2),
    ("its own parameters", 2),
]


@pytest.mark.parametrize(("kind", "num_ranks"), some(SHORT, CALLS, (2, 3, 4)))
def test_attention_is_computed_by_heads(ranks, kind, num_ranks):
    for of_rank in check(ranks, num_ranks, CALLS[kind], LOOP):
        assert (24, 24) in [whole for whole, _ in of_rank["shapes"]]
        assert kind in ("its own parameters", "dropout of all") or not of_rank["fetched"]


@pytest.mark.parametrize("kind", some([("dropout without weights",), ("a mask of each head",), ("of other sizes",)], CALLS))
def test_attention_is_computed_by_heads_in_groups(ranks, kind):
    check_groups(ranks, CALLS[kind], LOOP)


def test_attention_exchanges_one_sum_each_way(ranks):
    found = ranks.call(2, count, setup("x, x, x, need_weights=False", before="x = self.distance.sum() * x"), ONE_STEP)
    assert found == [[("reduce", 24), ("gather", 10), ("reduce", 24), ("reduce", 24)]] * 2


LAYER = "model = nn.Sequential(nn.TransformerEncoderLayer(24, 6, 44, 0.2, batch_first=True), nn.Linear(24, 10))\n"
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
ENCODER = setup() + LAYER + OPTIMIZER
EVALUATION = """
model.eval()
with torch.no_grad():
    losses += [model(X).sum().item(), model[0](X, src_key_padding_mask=Y > 6).sum().item(), model[0].self_attn(X, X, X)[1].std().item()]
with torch.inference_mode(): losses.append(model(X).std().item())
model.train()
"""
READS = """
attention = model[0].self_attn
optimizer.zero_grad(set_to_none=False)
losses.append(float(attention.in_proj_weight.grad.sum()))
F.cross_entropy(model(X).flatten(0, 1), Y.flatten()).backward()
gradient = attention.in_proj_weight.grad
losses += [list(gradient.shape), gradient[30].tolist(), attention.in_proj_bias.grad.norm().item(), attention.out_proj.weight.grad[:, 3].tolist()]
gradient.mul_(0.5)
model(X).std().backward()
losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
optimizer.step()
losses += [[v.double().sum().item() for v in model.state_dict().values()], list(attention.in_proj_weight.shape)]
losses += [v.norm().item() for p in model.parameters() for v in optimizer.state[p].values()]
with torch.no_grad(): attention.in_proj_weight[24:48].mul_(1.5)
model.load_state_dict({k: v * 0.9 for k, v in model.state_dict().items()})
hook = attention.register_forward_hook(lambda m, i, o: losses.append(o[0].sum().item()))
"""


def test_a_layer_in_a_cell_of_many_lines(ranks):
    """Evaluation takes PyTorch's fast path, which gets all of the parameters; gradients are whole for who reads them."""
    check(ranks, 2, ENCODER, LOOP + EVALUATION + READS + LOOP + "hook.remove()\n" + LOOP)


@pytest.mark.parametrize("name", some([("clip_grad_norm_",)], IDIOMS))
@pytest.mark.parametrize("groups", [False, pytest.param(True, marks=pytest.mark.long)])
def test_cell_with_attention(ranks, name, groups):
    if name == "L2 in loss":
        pytest.skip("AdamW makes steps of the rounding of a gradient that is zero (the bias of keys), under any strategy")
    if groups:
        check_groups(ranks, ENCODER, IDIOMS[name])
    else:
        check(ranks, 3, ENCODER, IDIOMS[name])


ERRORS = """
x, y, sample, mask = X[:2], X[:2, :3], X[0], torch.zeros(5, 5)
for call in (
    "x, x, x, is_causal=True", "x[..., :23], x, x", "x, y, x", "x, sample, sample", "x, X[:3], X[:3]", "x, x, x, torch.zeros(2, 4)",
    "x, x, x, attn_mask=mask[:4]", "x, x, x, attn_mask=torch.zeros(2, 5, 5)", "sample, y, y", "x[None], x[None], x[None]",
):
    try: eval(f"model.attention({call})")
    except Exception as error: losses.append(f"{type(error).__name__}: {error}")
"""


def test_calls_that_attention_does_not_take_are_the_errors_of_one_process(ranks):
    (one,) = ranks.call(1, run_divided, setup(), ERRORS + LOOP, "losses")
    assert sum(isinstance(error, str) for error in one["compared"]) == 10
    for of_rank in ranks.call(2, run_divided, setup(), ERRORS + LOOP, "losses"):
        assert of_rank["compared"][:10] == one["compared"][:10]


def test_encoder_and_decoder_are_divided(ranks):
    for of_rank in check(ranks, 2, MODELS["encoder-decoder"], LOOP):
        assert not any("in_proj_weight" in note for note in of_rank["notes"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"heads": 3}, "their 3 heads do not divide evenly over 2 engines"),
        ({"options": "add_bias_kv=True, batch_first=True"}, "their attention adds keys of its own"),
        ({"options": "add_zero_attn=True, batch_first=True"}, "their attention adds keys of its own"),
    ],
)
def test_attention_that_cannot_be_divided_is_whole_and_named(ranks, options, why):
    for of_rank in check(ranks, 2, setup(**options), LOOP):
        assert any("attention.in_proj_weight" in note and why in note for note in of_rank["notes"]), of_rank["notes"]


def named(run: Run, *patterns: str) -> dict[str, Any]:
    return run_divided(run, setup(), LOOP, "losses, [p for p in model.parameters()]", patterns)


def test_attention_that_is_named_to_be_whole_is_whole(ranks):
    assert not [whole for whole, _ in ranks.call(2, named, "*.in_proj_*=no", "head=col")[0]["shapes"] if whole[0] == 72]
