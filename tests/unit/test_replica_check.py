"""Weights that differ between ranks are told, and those that differ by rounding are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.backward.replica_check import ReplicaCheck

WEIGHT = torch.linspace(-1.0, 2.0, 12).view(3, 4)


def check(own: torch.Tensor, others: torch.Tensor) -> None:
    """Compare on rank 0 the weights `own` with `others` of rank 1."""
    sums: list[object] = []

    def noted(found: object) -> list[object]:
        sums.append(found)
        return [found]

    def of_both(found: object) -> list[object]:
        return [found, *sums]

    ReplicaCheck(noted, lambda leaves: []).before_pass([others])
    ReplicaCheck(of_both, lambda leaves: [f"weight {tuple(leaf.shape)}" for leaf in leaves]).before_pass([own])


@pytest.mark.parametrize(
    "others",
    [
        WEIGHT.flip(0) * 2,
        WEIGHT + 0.01,
        -WEIGHT,
        WEIGHT.t(),
        torch.where(WEIGHT > 1.9, torch.inf, WEIGHT),
        WEIGHT.clone().index_fill_(0, torch.tensor(1), torch.nan),
        WEIGHT.half() * 1.01,
    ],
)
def test_other_weights_are_told(others):
    with pytest.raises(RuntimeError, match=r"Rank 1 has other weights than rank 0: weight \(3, 4\)\. Does the cell"):
        check(WEIGHT, others)


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (WEIGHT, WEIGHT.clone()),
        (WEIGHT, WEIGHT * (1 + 1e-6)),
        (torch.zeros(3), torch.zeros(3)),
        (torch.full((3,), torch.nan), torch.full((3,), torch.nan)),
        (WEIGHT.to_sparse(), -WEIGHT.to_sparse()),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (nn.UninitializedParameter(), WEIGHT),
    ],
)
def test_equal_weights_and_kinds_that_are_not_compared(own, others):
    check(own, others)


def test_each_is_compared_once_and_all_that_are_left_at_the_end():
    compared: list[int] = []

    def exchange(found: dict[int, object]) -> list[object]:
        compared.append(len(found))
        return [found, found]

    one = ReplicaCheck(exchange, lambda leaves: [])
    first, second = torch.ones(2), torch.ones(3)
    one.at_end()
    for leaves in ([first], [first], [first, second]):
        one.before_pass(leaves)
    del first, leaves
    one.at_end()
    assert compared == [1, 1, 1]


def test_a_batch_is_no_weight_where_ranks_see_batches_of_their_own():
    compared: list[dict[int, object]] = []

    def exchange(found: dict[int, object]) -> list[object]:
        compared.append(found)
        return [found, found]

    one = ReplicaCheck(exchange, lambda leaves: [], only_parameters=True)
    one.before_pass([WEIGHT])
    assert not compared
    one.before_pass([WEIGHT, nn.Parameter(WEIGHT)])
    assert [len(found) for found in compared] == [1]
