"""``--shard``: parameters that are divided by name come to what one process comes to, and names that match nothing are an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import nn

from jupyter_dtrain.engine.strategies.tensor_parallel.named_shards import NamedShards
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.notebook.cell_line import parse_cell_line
from jupyter_dtrain.shard_patterns import ShardPattern
from tests.engine.ranks import RankError
from tests.engine.test_tensor_parallel import run_divided, some
from tests.engine.test_zero3 import CLOSE, distance
from tests.engine.zero3_cells import HEAD, IDIOMS, LOOP, MODELS, STATE

EXPERTS = (
    HEAD
    + """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up, self.down = nn.Parameter(torch.randn(4, 8, 12) * 0.1), nn.Parameter(torch.randn(4, 6, 8) * 0.1)
    def forward(self, x, choice):
        gate, up = torch.einsum("btd,bdh->bth", x, self.gate_up[choice]).chunk(2, -1)
        return torch.einsum("bth,bhd->btd", F.silu(gate) * up, self.down[choice])
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.router, self.head = Experts(), nn.Linear(8, 4), nn.Linear(8, 10)
    def forward(self, x):
        return self.head(x + self.experts(x, self.router(x.mean(1)).argmax(-1)))
X, Y = torch.randn(24, 5, 8), torch.randint(0, 10, (24, 5))
loader = DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
"""
)
CASES = {
    "experts": (EXPERTS, ["experts=col", "head=row"]),
    "experts along dim 1": (EXPERTS, ["*=no", "experts.*=row"]),
    "a linear layer by rows": (MODELS["MLP"], ["[0246]=row"]),
    "against the rule": (MODELS["MLP"], ["*=col", "2=no"]),
    "embeddings and attention": (MODELS["encoder-decoder"], ["*in_proj_weight=col", "source=row", "target=col", "*.linear2.weight=row"]),
    "convolutions": (MODELS["CNN"], ["*.c1=col", "*.c2=row"]),
    "recurrent layers": (MODELS["LSTM"], ["rnn=col", "tok=row"]),
    "a tied weight": (MODELS["transformer"], ["tok=row", "*.up=col", "*.down=row"]),
}


def check(ranks: Any, num_ranks: int, setup: str, cell: str, shard: Sequence[str]) -> list[dict[str, Any]]:
    (one,) = ranks.call(1, run_divided, setup, cell, STATE)
    found: list[dict[str, Any]] = ranks.call(num_ranks, run_divided, setup, cell, STATE, shard)
    for of_rank in found:
        assert of_rank["shapes"]
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
    return found


@pytest.mark.parametrize(("case", "num_ranks"), some([("experts", 2), ("a linear layer by rows", 3)], CASES, (2, 3)))
def test_training_with_parameters_that_are_divided_by_name(ranks, case, num_ranks):
    setup, shard = CASES[case]
    check(ranks, num_ranks, setup, LOOP, shard)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", IDIOMS)
def test_cell_with_parameters_that_are_divided_by_name(ranks, name, case):
    setup, shard = CASES[case]
    check(ranks, 2, setup, IDIOMS[name], shard)


def test_which_rows_each_rank_has(ranks):
    found = ranks.call(2, run_divided, EXPERTS, LOOP, STATE, ["experts.*=row", "experts.down=no", "head=col", "head.bias=no"])
    assert sorted(found[0]["shapes"]) == [((4, 8, 12), (4, 4, 12)), ((10, 8), (5, 8))]


def test_names_that_match_nothing_are_an_error(ranks):
    with pytest.raises(RankError, match=r"`--shard experst.\*=col` matches no parameter: there are `experts.gate_up`, .* and 2 more."):
        ranks.call(2, run_divided, EXPERTS, LOOP, STATE, ["experst.*=col", "head=row"])


def test_what_a_pattern_means():
    named = NamedShards([ShardPattern.parse(text) for text in ("*=no", "0=col", "*.bias=row", "2=row")])
    assert named.unmatched() is None  # as long as there is no model
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    named.look(model)
    assert [named.how(parameter) for parameter in model.parameters()] == ["col", "row", "row", "row"]
    named.check()
    named = NamedShards([ShardPattern("3", "no"), ShardPattern("x", "col")])
    named.look(model)
    with pytest.raises(UsageError, match="`--shard 3=no` and `--shard x=col` match no parameter"):
        named.check()


@pytest.mark.parametrize("text", ["*.experts.*", "=col", "a=cols", "col"])
def test_a_pattern_that_says_nothing_is_refused(text):
    with pytest.raises(UsageError, match="give names and how they are divided, col, row or no"):
        parse_cell_line(f"--strategy tensor --shard {text}")


def test_several_patterns_of_one_line():
    options = parse_cell_line('--mesh tp=2 --shard "*.experts.*=col" "*.out=row" --shard a=b=no')
    assert [str(one) for one in options.shard] == ["*.experts.*=col", "*.out=row", "a=b=no"]
    with pytest.raises(UsageError, match="--shard needs parameters that are divided by name, which --strategy auto does not have"):
        parse_cell_line("--shard a=col")
