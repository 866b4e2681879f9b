"""What the operations of a model show of samples that may depend on each other, where the batch at hand makes no difference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from jupyter_dtrain.engine.forward.parts_alone import differs
from jupyter_dtrain.engine.forward.sample_flow import SampleFlow

LAYER = nn.Linear(4, 4)
BOUND = 1e9
TOGETHER = {
    "the largest as a tensor": lambda x: x / 2 if x.abs().max() > BOUND else x,
    "the mean as a number": lambda x: x / 2 if x.mean().item() > BOUND else x,
    "a whole number": lambda x: x * (1 + int(x.max() / BOUND)),
    "whether there is any": lambda x: x / 2 if torch.any(x > BOUND) else x,
    "whether all are": lambda x: x if torch.isfinite(x).all() else x.nan_to_num(),
    "in place of what is rare": lambda x: torch.where(x > BOUND, x.mean(), x),
    "as a bound": lambda x: torch.minimum(x, BOUND + x.amax(0)),
    "normed along samples": lambda x: torch.where(x > BOUND, F.normalize(x, dim=0), x),
    "turned round": lambda x: torch.where(x > BOUND, x.flip(0), x),
    "added up": lambda x: torch.where(x > BOUND, x.cumsum(0), x),
    "attention between samples": lambda x: torch.where(x > BOUND, (x @ x.mT).softmax(1) @ x, x),
    "a list": lambda x: x / 2 if max(map(max, x.tolist())) > BOUND else x,
    "an array": lambda x: x / 2 if np.asarray(x).max() > BOUND else x,
    "how many are found": lambda x: x * (1 + len(x[x > BOUND])),
    "how many places are found": lambda x: x * (1 + (x > BOUND).nonzero().shape[0]),
    "the first": lambda x: x / 2 if x[0, 0] > BOUND else x,
    "equal to something": lambda x: x / 2 if torch.equal(x, x * 0) else x,
    "until it is small": lambda x: next(x * 0.9**k for k in range(99) if (x * 0.9**k).norm() < BOUND),
    "by the number of samples": lambda x: x * 2 if len(x) > 5 else x,
    "as the end of a slice": lambda x: x[:, : 4 * (x < BOUND).all().long()],
    "as the step of a slice": lambda x: torch.cat([x[0:, :: (x[0, 0] < BOUND).long()], x], 1),
    "as many classes as there are": lambda x: F.one_hot((x > BOUND).long()).flatten(1) / 4,
    "in a loop over samples": lambda x: torch.stack([row / 2 if row.max() > BOUND else row for row in x]),
    "in a part that is computed again": lambda x: checkpoint(lambda z: z / 2 if z.max() > BOUND else z, x, use_reentrant=False),
    "beside a transform": lambda x: torch.vmap(lambda row: torch.where(row > BOUND, x.mean(), row))(x),
}
APART = {
    "layers": nn.Sequential(LAYER, nn.LayerNorm(4), nn.Dropout(), nn.GELU()),
    "a recurrent layer": lambda x: nn.LSTM(1, 3, batch_first=True)(x[..., None])[0],
    "attention": lambda x: nn.MultiheadAttention(4, 2, batch_first=True)(x[:, None], x[:, None], x[:, None])[0],
    "a transformer": lambda x: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()(x[:, None]),
    "a convolution": lambda x: nn.GroupNorm(1, 2)(F.conv1d(x[:, None], torch.ones(2, 1, 3))),
    "statistics of each sample": lambda x: torch.where(x > 0, x.mean(1, keepdim=True), x.amax(1, keepdim=True)),
    "along each sample": lambda x: x.softmax(1) + x.cumsum(1) + x.flip(1),
    "what is written": lambda x: torch.zeros_like(x).masked_fill_(x > 0, 2.0) + x.new_zeros(()),
    "a distribution that checks": lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
    "classes": lambda x: F.one_hot((x > 0).long(), 2).flatten(1),
    "packed sequences": lambda x: nn.utils.rnn.pad_packed_sequence(
        nn.GRU(1, 3)(nn.utils.rnn.pack_padded_sequence(x.mT[..., None], torch.full((len(x),), 4)))[0]
    )[0],
    "its size": lambda x: x.view(x.shape[0], -1) * x.size(1) / x[:, 0].dim(),
    "noise": lambda x: x + torch.randn_like(x) * torch.randn(4),
    "a transform of samples": lambda x: torch.vmap(lambda row: torch.where(row > row.mean(), row, row.max()))(x),
    "a script": torch.jit.script(nn.Sequential(LAYER, nn.Tanh())),
}


def mixes(call) -> str | None:
    x = torch.randn(9, 4)
    flows = [SampleFlow(slice(2, 4)), SampleFlow(slice(0, 9))]
    with torch.no_grad():
        for flow in flows:
            torch.manual_seed(0)  # layers that are made in the call are the same
            with flow:
                call(x[flow.samples])
    return flows[0].mixes(flows[1], differs)


@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_of_several_samples_is_seen_where_it_makes_no_difference(name):
    assert mixes(TOGETHER[name])


@pytest.mark.parametrize("name", APART)
def test_what_is_of_each_sample_is_told_apart(name):
    assert not mixes(APART[name])
