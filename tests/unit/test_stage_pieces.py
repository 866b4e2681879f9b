"""What a stage holds of gradients while it goes through the pieces of all ranks."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.strategies.pipeline.handed_values import taken_apart
from jupyter_dtrain.engine.strategies.pipeline.pieces import Key, Pieces
from jupyter_dtrain.planning.live_bytes import LiveBytes

WIDTH, LAYERS, RANKS = 256, 6, 3
KEY = Key(1, (0,), 0)


class Whole:
    """A parameter of the stage, which has all of it."""

    def __init__(self, number, parameter):
        self.number, self.parameter = number, parameter

    def computed_with(self):
        return nullcontext()


def passed_through(order):
    """Let the ranks come to a stage in an `order`; return its gradients, the most bytes, and of which ranks each was ahead."""
    torch.manual_seed(0)
    stage = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    shards = [Whole(number, parameter) for number, parameter in enumerate(stage.parameters())]
    pieces, ahead_of = Pieces(RANKS), []
    for rank in range(RANKS):
        tensors: list[torch.Tensor] = []
        given = taken_apart(((torch.randn(2, WIDTH),), {}), tensors)
        pieces.compute(rank, KEY, [stage], shards, given, tensors, [False])
    with LiveBytes() as live:
        for rank in order:
            ahead_of.append(pieces.missing_before(rank, KEY))
            pieces.backward(rank, KEY, [torch.ones(2, WIDTH)], keeps=False)
        found = {shard.number: gradient for shard, gradient in pieces.gradients()}
    return found, live.peak, ahead_of


def test_a_stage_in_the_order_of_ranks_holds_the_sum_and_what_one_rank_has():
    found, peak, ahead_of = passed_through([0, 1, 2])
    layer = WIDTH * WIDTH * 4
    assert peak < (3 * LAYERS + 2) * layer, "its parameters, the sum, what one rank has, and one gradient that is added"
    assert ahead_of == [[], [], []]
    assert len(found) == LAYERS


@pytest.mark.parametrize(("order", "ahead"), [([2, 0, 1], [[0, 1], [], []]), ([0, 2, 1], [[], [1], []]), ([1, 2, 0], [[0], [0], []])])
def test_a_rank_that_comes_out_of_turn_changes_no_bit(order, ahead):
    (found, _, ahead_of), (expected, *_) = passed_through(order), passed_through([0, 1, 2])
    assert ahead_of == ahead
    assert all(torch.equal(found[number], expected[number]) for number in expected)
