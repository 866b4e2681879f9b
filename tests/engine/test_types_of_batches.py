"""Types of a batch's tensors as keys: in tables, sets, counters and generic functions, beside those of plain tensors."""

from __future__ import annotations

import pytest

from tests.engine.ranks import run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import functools
from collections import Counter
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(3, 1)
loader = DataLoader(TensorDataset(torch.randn(11, 3), torch.randn(11, 1)), batch_size=4)

@functools.singledispatch
def show(value): return "other"

@show.register(torch.Tensor)
def _(value): return "tensor"

@show.register(float)
def _(value): return "float"
"""
CELL = """
counts, seen = Counter(), []
for x, y in loader:
    plain = torch.ones(len(x), 1)
    values = [x, y, F.mse_loss(model(x), y), 1.0, plain, model.weight]
    counts.update(type(value) for value in values)
    for value in values:
        seen.append((show(value), {torch.Tensor: "tensor", float: "float"}.get(type(value)), type(value) in {torch.Tensor, float}))
    seen.append((len({type(x), type(plain)}), {type(x): 1} == {torch.Tensor: 1}, len({}.fromkeys(map(type, values)))))
"""
# Functions written in Python gather the types of their operands in a set; of each the first is plain.
MIXED = """
seen = []
for x, y in loader:
    ones = torch.ones(len(x), 3)
    seen.append([
        F.mse_loss(ones[:, :1], y), F.binary_cross_entropy(ones[:, :1] / 2, y.sigmoid()), F.cosine_similarity(ones, x),
        F.bilinear(ones, x, torch.ones(2, 3, 3)), F.triplet_margin_loss(ones * 0, x, ones), torch.cdist(ones, x),
        torch.einsum("bi,bj->ij", ones, x), torch.tensordot(ones[:, :1], y, dims=2),
        torch.meshgrid(ones[:, 0], x[:, 0], indexing="ij")[1], torch.block_diag(ones, x), torch.cartesian_prod(ones[:, 0], x[:, 0]),
        torch.atleast_2d(ones, x)[1], torch.broadcast_tensors(ones, x)[1],
    ])
    seen[-1] = [value.tolist() for value in seen[-1]]
"""


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("cell", "compare"), [(CELL, "repr(counts), seen"), (MIXED, "seen")], ids=["keys", "operands"])
def test_types_of_a_batch_are_those_of_plain_tensors(ranks, cell, compare, world_size):
    plain = ranks.call(1, run_plain, SETUP, cell, compare)[0]
    for found in ranks.call(world_size, run_notebook, SETUP, cell, compare):
        assert not apart(plain["compared"], found["compared"], 1e-9, path="seen")
