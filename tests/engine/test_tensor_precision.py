"""Layers of 16 bits whose parts ranks add up: their results are rounded as often as one process rounds them."""

from __future__ import annotations

import pytest
import torch

from tests.engine.test_tensor_pairs import model
from tests.engine.test_tensor_parallel import check, run_divided
from tests.engine.transformers_layers import LLAMA

PLAIN = model(
    "nn.Sequential(nn.Linear(8, 96), nn.GELU(), nn.Linear(96, 8), nn.LayerNorm(8), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 10))"
)
GATED = model("nn.Sequential(nn.Linear(8, 8), LlamaMLP(8, 96), nn.LayerNorm(8), nn.Linear(8, 10))", LLAMA)
PASS = """
given = X.to(torch.{of_model}).requires_grad_()
with torch.autocast("cpu", torch.{dtype}, enabled={autocast}): out = model(given)
(out.float() * torch.linspace(-1, 1, 10)).sum().backward()
"""
FOUND = "out, given.grad, [p.grad for p in model.parameters()]"


def flat(values: object) -> torch.Tensor:
    found = values if isinstance(values, torch.Tensor) else torch.cat([flat(value) for value in values])  # type: ignore[attr-defined]
    return found.detach().double().flatten()


def apart(ranks, setup: str, dtype: str, *, autocast: bool) -> list[tuple[float, float]]:
    """Return of what comes out, the gradient of what is given, and those of parameters: how many numbers differ, and how far all do."""
    of_model = "float32" if autocast else dtype
    cell = PASS.format(of_model=of_model, dtype=dtype, autocast=autocast)
    (one,) = ranks.call(1, run_divided, f"{setup}\nmodel.to(torch.{of_model})\n", cell, FOUND)
    two = ranks.call(2, run_divided, f"{setup}\nmodel.to(torch.{of_model})\n", cell, FOUND)
    assert two[0]["shapes"]
    assert str(one["compared"][0].dtype) == f"torch.{dtype}"
    found = []
    for expected, *of_ranks in zip(*(map(flat, of_rank["compared"]) for of_rank in (one, *two)), strict=True):
        assert torch.equal(*of_ranks)
        found.append((float((expected != of_ranks[0]).double().mean()), float((expected - of_ranks[0]).norm() / expected.norm())))
    return found


@pytest.mark.parametrize(("dtype", "autocast"), [("bfloat16", False), ("float16", False), ("bfloat16", True)])
def test_parts_of_16_bits_are_rounded_once(ranks, dtype, autocast):
    """A sum in another order is another number where it lies at the edge of a rounding, which is seldom."""
    for how_many, how_far in apart(ranks, PLAIN, dtype, autocast=autocast):
        assert how_many < 0.01
        assert how_far < torch.finfo(getattr(torch, dtype)).eps / 8


def test_the_gradient_of_what_two_layers_are_given_is_rounded_once_for_both(ranks):
    """One process rounds that of each of them, and their sum."""
    result, given, _ = apart(ranks, GATED, "bfloat16", autocast=False)
    assert result[0] < 0.01
    assert given[1] < torch.finfo(torch.bfloat16).eps


AUTOCAST = "torch.autocast('cpu', torch.bfloat16)"
LEFT = f"""
for x in X.split(4):
    with {AUTOCAST}: loss = model(x).float().square().mean()
    loss.backward(); optimizer.step()
"""
KEPT = f"""
with {AUTOCAST}:
    for x in X.split(4):
        loss = model(x).float().square().mean(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize("told", [True, False])
def test_a_step_within_autocast_is_told_where_its_cache_makes_a_difference(ranks, told):
    """One process computes with the weights that it has cast before the first step, until it leaves the context."""
    setup = f"{PLAIN}\nmodel.float()\nX = X.float()\n"
    said = [of_rank["notes"] for of_rank in ranks.call(2, run_divided, setup, KEPT if told else LEFT, "0")]
    assert [sum("cache_enabled=False" in note for note in notes) for notes in said] == [int(told)] * 2
    nocache = KEPT.replace("bfloat16)", "bfloat16, cache_enabled=False)")
    for of_rank in ranks.call(2, run_divided, setup, nocache, "0") if told else ():
        assert not any("cache_enabled=False" in note for note in of_rank["notes"])


def test_dtypes_that_do_not_go_together_are_the_error_that_they_are(ranks):
    cell = "try: model(X.bfloat16())\nexcept RuntimeError as error: losses.append('dtype' in str(error))\n"
    assert check(ranks, 2, PLAIN, cell, "losses")[0]["compared"] == [True]
