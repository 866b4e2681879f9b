"""Encoders of PyTorch's whose parameters are sharded take the ways in evaluation that they take in one process."""

from __future__ import annotations

import pytest

from tests.engine.test_tensor_pairs import OPTIMIZER
from tests.engine.test_tensor_parallel import check as check_divided
from tests.engine.test_zero3 import CLOSE, distance, run_sharded
from tests.engine.zero3_cells import HEAD

SETUP = f"""{HEAD}
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 24, batch_first=True, dropout=0.1), 2)
alone = nn.MultiheadAttention(8, 2, batch_first=True)
X, padded = torch.randn(4, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [4], [2]])
losses = []
{OPTIMIZER}"""
CELL = """
for _ in range(2):
    model.train()
    loss = model(X, src_key_padding_mask=padded).pow(2).mean() + alone(X, X, X, need_weights=False)[0].mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    model.eval(); alone.eval()
    with torch.no_grad():
        losses += [loss.item(), model(X, src_key_padding_mask=padded), model(X), model.layers[0](X, src_key_padding_mask=padded)]
        losses += alone(X, X, X, key_padding_mask=padded)
"""


@pytest.mark.parametrize("strategy", ["tensor", "zero3"])
def test_what_is_padded_is_left_out_in_evaluation(ranks, strategy):
    """By the fused way, which fills it with zeros."""
    if strategy == "tensor":
        check_divided(ranks, 2, SETUP, CELL, "losses")
        return
    (one,) = ranks.call(1, run_sharded, SETUP, CELL, "losses")
    assert (one["compared"][1][1, 3:] == 0).all()
    for of_rank in ranks.call(2, run_sharded, SETUP, CELL, "losses"):
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
