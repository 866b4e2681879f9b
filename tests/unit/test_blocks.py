"""Which modules of a model are its repeated blocks."""

from __future__ import annotations

import pytest
from torch import nn

from jupyter_dtrain.planning.model_cut import blocks_in


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Sequential(nn.Linear(4, 2), nn.Tanh()) for _ in range(2)])
        self.out = nn.Linear(4, 4)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)


def stages():
    return nn.Sequential(nn.Conv2d(3, 4, 3), *[nn.Sequential(Residual(), Residual()) for _ in range(3)], nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), []),
        (nn.Sequential(*[Block() for _ in range(3)]), ["0", "1", "2"]),
        (nn.Sequential(Block(), nn.Linear(4, 4)), ["0.heads.0", "0.heads.1"]),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 3, enable_nested_tensor=False), ["layers.0", "layers.1", "layers.2"]),
        (stages(), [f"{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1)]),
        (nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)]), ["0", "1"]),
        (nn.ModuleList([nn.ModuleList([nn.Linear(2, 2)]) for _ in range(2)]), []),
    ],
    ids=["layers alone", "blocks", "one block", "a transformer", "stages of blocks", "sequences", "lists of lists"],
)
def test_the_blocks_of_a_model(model, names):
    found = {id(block) for block in blocks_in(model)}
    assert [name for name, module in model.named_modules() if id(module) in found] == names
