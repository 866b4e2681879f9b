"""Optimizers that the cell makes of a ``set`` of parameters, whose order is another one on each rank."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.strategies.zero1.group_order import GroupOrder
from tests.engine.divided_cells import STRATEGIES
from tests.engine.everyday_cells import LOOP, MLP
from tests.engine.ranks import RankError, Run
from tests.engine.test_divided_models import check, marked
from tests.engine.test_shared_states import SETUP, both

MIXED = """
import os, random
def mixed(parameters):
    parameters = list(parameters)
    random.Random(os.getpid()).shuffle(parameters)
    return parameters
"""
CELLS = {
    "all": "optimizer = torch.optim.Adam(mixed(model.parameters()), lr=1e-2)",
    "momentum": "optimizer = torch.optim.SGD(mixed(model.parameters()), lr=0.1, momentum=0.9)",
    "sorted by id": "optimizer = torch.optim.SGD(sorted(model.parameters(), key=id), lr=0.1, momentum=0.9)",
    "groups": """
head = set(model[-1].parameters())
body = mixed(set(model.parameters()) - head)
optimizer = torch.optim.AdamW([{"params": body}, {"params": mixed(head), "lr": 0.1}], lr=1e-2)
""",
    "of a new model": "model = copy.deepcopy(model); optimizer = torch.optim.AdamW(mixed(model.parameters()), lr=1e-2)",
}
ADDED = """
optimizer = torch.optim.Adam(mixed(model[-1].parameters()), lr=1e-2)
{loop}
optimizer.add_param_group({{"params": mixed(set(model.parameters()) - set(model[-1].parameters()))}})
said = len(optimizer.state_dict()["state"])
{loop}
"""
KEPT = "\nkept = [optimizer.state.get(p) for p in model.parameters()]\n"
COMPARE = "losses, [p.detach().clone() for p in model.parameters()], kept"
EACH_TIME = [("all", "zero3 3"), ("momentum", "pipeline 2"), ("groups", "tensor 2x2"), ("added", "zero3 2")]


@pytest.mark.parametrize(("name", "strategy"), marked(product([*CELLS, "added"], STRATEGIES), EACH_TIME))
def test_where_models_are_divided(ranks, name, strategy):
    cell = ADDED.format(loop=LOOP) if name == "added" else f"{CELLS[name]}\n{LOOP}"
    assert check(ranks, strategy, MLP + MIXED, cell + KEPT, COMPARE)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", [*CELLS, "added"])
def test_where_optimizer_states_are_divided(ranks, name, num_ranks):
    loop = "train(1, optimizer.step)"
    cell = ADDED.format(loop=loop) if name == "added" else f"{CELLS[name]}\n{loop}"
    both(ranks, num_ranks, SETUP + MIXED, cell, "seen, [optimizer.state.get(p) for p in model.parameters()]")


def order_of(run: Run, values: list[torch.Tensor], num_known: int) -> list[int]:
    """Return the order of some parameters on this rank, the first of which are in a model, in an optimizer of a `set` of them."""
    model, own = nn.ParameterList(values[:num_known]), [*range(len(values))]
    parameters = [*model, *(nn.Parameter(value) for value in values[num_known:])]
    shift = run.rank % len(own)
    optimizer: Any = torch.optim.SGD([parameters[index] for index in [*own[shift:], *own[:shift]]], lr=0.1)
    GroupOrder(lambda: [model], strategy="zero1").agree(optimizer)
    found = {id(parameter): index for index, parameter in enumerate(parameters)}
    return [found[id(parameter)] for parameter in optimizer.param_groups[0]["params"]]


def test_rank_0_has_the_order(ranks):
    zeros, different = [torch.zeros(3)] * 3, [torch.zeros(3), torch.ones(3), torch.ones(2)]
    for values, num_known in [(zeros, 3), (different, 0), (different, 1)]:
        assert ranks.call(3, order_of, values, num_known) == [[0, 1, 2]] * 3


def test_what_cannot_be_told_apart_is_refused(ranks):
    with pytest.raises(RankError, match="parameters of `SGD` in different orders, which `--strategy zero1` cannot match"):
        ranks.call(2, order_of, [torch.zeros(3), torch.zeros(2), torch.zeros(2)], 0)
