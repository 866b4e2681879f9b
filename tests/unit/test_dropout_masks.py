"""Dropout masks for the whole batch are asked of PyTorch as one process asks: a GPU has a kernel for each way.

Dropout of a dense tensor, of one with gaps, and in place draw in three ways there, and in one on a CPU. So what is looked at here is what
the function is called with.
"""

import pytest
import torch
import torch.nn.functional as F

from jupyter_dtrain.engine.rng.sampling_ops import Rows, kind_of

CALLS = {
    "dense": (lambda batch: batch, False),
    "part of its columns": (lambda batch: batch[:, 1:5], False),
    "transposed": (lambda batch: batch.unflatten(1, (2, 3)).transpose(1, 2), False),
    "expanded": (lambda batch: batch[:, None].expand(-1, 3, -1), False),
    "in place": (lambda batch: batch, True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mask_is_drawn_as_one_process_draws_it(monkeypatch, name):
    of, in_place = CALLS[name]
    asked = []

    def dropout(tensor, p=0.5, training=True, inplace=False):
        asked.append((tuple(tensor.shape), tensor.stride(), inplace, tensor.unique().tolist()))
        return tensor.mul_(2.0) if inplace else tensor * 2.0

    whole, part = of(torch.rand(8, 6)), of(torch.rand(4, 6))
    before = part.clone()
    kind = kind_of(F.dropout, (part,))
    assert kind is not None
    dropped = kind.draw(dropout, (part,), {"p": 0.5, "training": True, "inplace": in_place}, Rows(0, slice(4, 8), 8))
    ((shape, strides, was_in_place, values),) = asked
    assert (shape, was_in_place, values) == (whole.shape, in_place, [1.0])
    dense, others_are = (
        torch.empty_like(whole).stride() == whole.stride(),
        torch.empty(0).set_(torch.empty(999).untyped_storage(), 0, shape, strides),
    )
    assert (torch.empty_like(others_are).stride() == strides) == dense, "a tensor with gaps, or none"
    assert dense is (name in ("dense", "transposed", "in place"))
    assert torch.equal(dropped, before * 2.0)
    assert (dropped is part) == in_place
