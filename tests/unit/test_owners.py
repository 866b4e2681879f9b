"""Who holds what an optimizer keeps of which parameter, and which optimizers can be divided at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.strategies.zero1.partition import KINDS, Owners, has_known_step, has_parts, is_pytorchs


def parameters(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def owners_of(owners: Owners, optimizer: torch.optim.Optimizer) -> list[int]:
    return list(owners.of(optimizer).values())


def test_the_largest_first_each_to_who_has_least():
    optimizer = torch.optim.SGD(parameters(1, 5, 2, 4, 3))
    assert owners_of(Owners(2), optimizer) == [0, 0, 0, 1, 1]
    assert owners_of(Owners(1), optimizer) == [0] * 5
    assert len(set(owners_of(Owners(7), optimizer))) == 5


def test_who_holds_a_parameter_goes_on_doing_so():
    owners, first = Owners(2), parameters(10, 9)
    optimizer = torch.optim.SGD(first)
    before = owners_of(owners, optimizer)
    optimizer.add_param_group({"params": parameters(100)})
    optimizer.param_groups[0]["params"].reverse()
    assert owners_of(owners, optimizer) == [*reversed(before), 1]


def test_frozen_parameters_weigh_nothing():
    frozen, *others = parameters(1000, 5, 5)
    frozen.requires_grad_(False)
    assert owners_of(Owners(2), torch.optim.SGD([frozen, *others]))[1:] == [0, 1]


def test_many_small_optimizers_are_spread_over_the_ranks():
    owners = Owners(3)
    optimizers = [torch.optim.SGD(parameters(4)) for _ in range(6)]
    assert sorted(owner for optimizer in optimizers for owner in owners_of(owners, optimizer)) == [0, 0, 1, 1, 2, 2]


def test_what_shares_memory_stays_together():
    whole = torch.zeros(10)
    views = [nn.Parameter(whole[:5]), nn.Parameter(whole[5:])]
    optimizer = torch.optim.SGD([*views, *parameters(7)])
    assert owners_of(Owners(2), optimizer) == [1, 1, 0]
    optimizer.add_param_group({"params": [nn.Parameter(whole.view(2, 5))]})


class Norm(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Inner(torch.optim.Adam):
    def _init_group(self, *args):
        return super()._init_group(*args)


class Defaults(torch.optim.Adam):
    """Adam with a rate."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)


@pytest.mark.parametrize("kind", [*sorted(KINDS, key=str), Norm, Inner, Defaults, torch.optim.LBFGS], ids=lambda kind: kind.__name__)
def test_those_of_pytorch_that_update_each_parameter_by_itself(kind):
    optimizer = kind([nn.Parameter(torch.zeros(2, 2))])
    assert has_known_step(optimizer) == has_parts(optimizer) == (kind in KINDS or kind is Defaults)
    assert is_pytorchs(kind.step) == (kind is not Norm)


def test_not_where_parameters_are_more_than_numbers_in_memory():
    assert not has_parts(torch.optim.SGD([nn.Parameter(torch.zeros(2).to_sparse())]))
    assert not has_parts(torch.optim.SGD(parameters(2), differentiable=True))
    assert has_parts(torch.optim.SGD([torch.zeros(2, requires_grad=True)]))
