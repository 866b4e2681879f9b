"""The parts that BatchNorm over a whole batch is made of: their gradients, and what their graphs keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jupyter_dtrain.engine.tensor.batch_norm_functions import batch_sums, dims_of, normalized
from jupyter_dtrain.planning.live_bytes import LiveBytes


def layer(x, weight, bias):
    """Return BatchNorm of these parts, on one process."""
    count = x.numel() / x.shape[1]
    origin = x.detach().mean(dims_of(x)) + 0.1
    sums, squares = (one / count for one in batch_sums(x, origin, x.dtype))
    return normalized(x, origin + sums, weight * torch.rsqrt(squares - sums.square() + 1e-5), bias)


def values(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(*one, dtype=dtype).requires_grad_() for one in (shape, shape[1:2], shape[1:2])]


@pytest.mark.parametrize("shape", [(5, 3), (4, 2, 3), (3, 2, 2, 2)])
def test_gradients_of_every_kind_are_right(shape):
    given = values(*shape)
    assert torch.autograd.gradcheck(layer, given, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(layer, given)
    x, weight, bias = given
    assert torch.allclose(layer(x, weight, bias), F.batch_norm(x, None, None, weight, bias, training=True), rtol=1e-12, atol=1e-12)


def test_the_graph_keeps_the_batch_alone():
    """As PyTorch's own does, so what a model's layers keep is one batch each."""
    x, weight, bias = values(16, 8, 8, 8, dtype=torch.float32)
    kept = []
    for one in (layer, lambda x, weight, bias: F.batch_norm(x, None, None, weight, bias, training=True)):
        live = LiveBytes()
        with live:
            result = one(x * 1, weight, bias)
            kept.append(live.bytes_now())
            del result
    own, plain = kept
    assert own - plain < x.nbytes / 10, "of a layer that is given what nobody else keeps: that, and what it returns"
