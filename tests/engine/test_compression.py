"""Gradients in 16 bits: the same bits on all ranks, half the bytes, and the value of the loss as it is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import cast
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jupyter_dtrain.engine.comm import meeting_place, process_group
from jupyter_dtrain.engine.strategies.less_communication.compression import TYPES, CompressedGradients
from jupyter_dtrain.options import Compress
from tests.engine.ranks import Run

LENGTH = 24


class Tables(nn.Module):
    """Of which the ranks reach one or the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.sparse = nn.Linear(4, 3), nn.Linear(4, 3), nn.Embedding(5, 4, sparse=True)

    def forward(self, x):
        return (self.first if x[0, 0] > 0 else self.second)(x + self.sparse(torch.arange(len(x)) % 5)).sum(1, keepdim=True)


def wide() -> nn.Module:
    """More than a slot has room for, in one of its gradients."""
    return nn.Sequential(nn.Linear(4, 1200), nn.Tanh(), nn.Linear(1200, 600), nn.Tanh(), nn.Linear(600, 1))


KINDS = {"wide": wide, "tables": Tables}


def trained(
    run: Run, kind: str, compress: str, *, network: bool = False, scale: float = 1.0, half: bool = False, more: int = 0, offset: float = 0.0
) -> dict:
    """Return what one pass leaves on this rank, the loss that the cell reads, and the bytes that the pass has exchanged."""
    torch.manual_seed(3)
    model = KINDS[kind]()
    if half:
        model = model.to(torch.float64)
    inputs, said = torch.randn(LENGTH, 4, dtype=torch.float64 if half else torch.float32), list[str]()
    count, meet = 0, meeting_place.MeetingPlace._meet

    def counted(self, num_bytes, *rest):
        nonlocal count
        count += num_bytes
        return meet(self, num_bytes, *rest)

    training = run.training(model)
    exchange = CompressedGradients(cast("Compress", compress), said.append) if compress != "none" else None
    if exchange is not None:
        training.exchange_by(exchange)
    far = mock.patch.object(process_group, "shared_memory", return_value=None) if network else nullcontext()
    with training.installed(), far, mock.patch.object(meeting_place.MeetingPlace, "_meet", counted):
        (x,) = training.share_out({"x": inputs}).values()
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True)) * scale + offset
        loss.backward()
        counted_bytes, value = count, loss.item()
        first = {name: p.grad.to_dense().clone() for name, p in model.named_parameters() if p.grad is not None}
        for _ in range(more):
            (F.mse_loss(model(x), x.sum(1, keepdim=True)) * scale * 1e-3).backward()
    grads = {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}
    return {"grads": grads, "first": first, "value": value, "bytes": counted_bytes, "said": said}


def same_bits(found: list[dict]) -> bool:
    return all(
        torch.equal(other["grads"][name], grad) and other["value"] == found[0]["value"]
        for other in found[1:]
        for name, grad in found[0]["grads"].items()
    )


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize(("kind", "compress", "size"), [("wide", "bf16", 2), ("wide", "fp16", 3), ("tables", "bf16", 2)])
def test_all_ranks_have_the_same_bits_near_those_of_the_exact_exchange(ranks, kind, compress, size, network):
    plain = ranks.call(size, call, kind, "none", network)
    found = ranks.call(size, call, kind, compress, network)
    assert same_bits(found)
    assert found[0]["value"] == pytest.approx(plain[0]["value"], rel=2.0**-22)  # its digits, added up in another order elsewhere
    differs = False
    for name, exact in plain[0]["grads"].items():
        grad = found[0]["grads"][name]
        assert grad.dtype == exact.dtype
        largest = exact.abs().max().item()
        assert (grad - exact).abs().max().item() <= largest * size * 2.0 ** (-8 if compress == "bf16" else -10) + 1e-7
        differs |= name != "sparse.weight" and not torch.equal(grad, exact)
    assert differs
    if "sparse.weight" in plain[0]["grads"]:
        assert torch.equal(found[0]["grads"]["sparse.weight"], plain[0]["grads"]["sparse.weight"])


def call(
    run: Run, kind: str, compress: str, network: bool, scale: float = 1.0, half: bool = False, more: int = 0, offset: float = 0.0
) -> dict:
    return trained(run, kind, compress, network=network, scale=scale, half=half, more=more, offset=offset)


@pytest.mark.parametrize("network", [False, True])
def test_what_passes_add_up_is_not_rounded_again_by_each(ranks, network):
    """Each of forty adds a thousandth, which is nothing beside eight digits of the sum."""
    exact, found = (ranks.call(2, call, "wide", kind, network, 1.0, False, 40) for kind in ("none", "bf16"))
    assert same_bits(found)
    for name, grad in exact[0]["grads"].items():
        added, expected = found[0]["grads"][name] - found[0]["first"][name], grad - exact[0]["first"][name]
        assert (added - expected).abs().max() <= 0.01 * expected.abs().max()


@pytest.mark.parametrize(("double", "most"), [(False, 0.5), (True, 0.25)])
def test_the_bytes_are_half_of_float32_and_a_quarter_of_float64(ranks, double, most):
    plain, found = (ranks.call(2, call, "wide", kind, False, 1.0, double)[0]["bytes"] for kind in ("none", "bf16"))
    number = 8 if double else 4
    size = sum(p.numel() for p in wide().parameters()) * number
    assert plain == pytest.approx(size, abs=5000)
    assert found == pytest.approx(size * most, abs=5000)


@pytest.mark.parametrize("network", [False, True])
def test_a_gradient_that_fp16_has_no_room_for_is_told_of(ranks, network):
    for found in ranks.call(2, call, "wide", "fp16", network, 1e7):
        assert any(grad.isinf().any() for grad in found["grads"].values())
        assert ["no numbers above 65,504" in line for line in found["said"]] and found["said"]
    for found in ranks.call(2, call, "wide", "bf16", network, 1e7):
        assert all(grad.isfinite().all() for grad in found["grads"].values())
        assert not found["said"]
    for found in ranks.call(2, call, "wide", "fp16", network, 1.0, False, 0, 1e6):  # a loss goes as it is, and is no gradient
        assert found["value"] > 1e6
        assert not found["said"]


def test_types_are_those_of_16_bits():
    assert {kind.itemsize for kind in TYPES.values()} == {2}
