"""What engines read of each other in a step, as plans have it: by hand, for a small model."""

from __future__ import annotations

import ast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from jupyter_dtrain.engine.strategies.tensor_parallel import rules
from jupyter_dtrain.planning.engine_plan import plans
from jupyter_dtrain.planning.memory_plan import measure, strategies_on
from jupyter_dtrain.planning.step_time import Speeds

CELL = ast.parse("nn.functional.cross_entropy(model(x), y).backward()")
BATCH, IN, WIDTH, OUT = 32, 64, 512, 10
FIRST, SECOND, LAST = 4 * WIDTH * IN, 4 * WIDTH * WIDTH, 4 * OUT * WIDTH  # bytes of weights: the last is too small to divide
SMALL = 4 * (2 * WIDTH + OUT) + LAST


@pytest.fixture(scope="module")
def trained():
    model = nn.Sequential(nn.Linear(IN, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, OUT))
    loader = DataLoader(TensorDataset(torch.randn(64, IN), torch.randint(OUT, (64,))), batch_size=BATCH)
    values = {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "loader": loader}
    return measure(CELL, values, engines=[2, 4], device="cpu", rules=rules)


def exchanged(trained, engines: int) -> dict[str, int]:
    return {plan.name: plan.exchanged for plan in plans(trained, strategies_on("cpu"), [engines]) if plan.engines == engines}


def test_two_engines(trained):
    found, gradients = exchanged(trained, 2), FIRST + SECOND + SMALL
    assert found["auto"] == gradients, "half of the sum is read, and half of what was added up"
    assert found["zero1"] == gradients + SECOND, "whole parameters, the largest on an engine alone"
    # Nothing asks for the gradient of the inputs, so the backward pass needs the second weight alone.
    assert found["zero3"] == (FIRST + 2 * SECOND) // 2 + (FIRST + SECOND) // 2 + SMALL
    # Of a pair: the sum of what comes out. The first layer is given no gradient. The last is small and whole.
    assert found["tensor"] == 4 * BATCH * WIDTH + LAST + 4 * OUT


def test_attention_by_heads_reads_two_sums():
    """One of what comes out, and one of the gradient of what is given; of 4 heads, which 8 engines do not divide."""
    model = nn.Sequential(nn.Linear(4, 128), nn.TransformerEncoderLayer(128, 4, 16, batch_first=True))
    loader = DataLoader(TensorDataset(torch.randn(32, 6, 4), torch.randn(32, 6, 128)), batch_size=16)
    values = {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "loader": loader}
    measured = measure(CELL, values, engines=[2, 8], device="cpu", rules=rules)
    step = measured.steps[16]
    (call,) = step.work.linears
    assert (call.place, call.heads, call.given, call.returned) == ("heads", 4, 16 * 6 * 128 * 4, 16 * 6 * 128 * 4)
    divided = sum(layer.parameters for layer in step.layers)
    assert divided == 4 * (3 * 128 * 128 + 3 * 128 + 128 * 128)
    both = 2 * 16 * 6 * 128 * 4
    assert exchanged(measured, 2)["tensor"] == both + step.parameters - divided
    assert exchanged(measured, 8)["tensor"] == 2 * 7 * step.parameters // 8, "heads that do not divide evenly are whole"


def test_more_engines_read_more_of_a_sum(trained):
    found = exchanged(trained, 4)
    assert found["auto"] == pytest.approx(1.5 * (FIRST + SECOND + SMALL), abs=4)
    assert found["tensor"] == 1.5 * (4 * BATCH * WIDTH + LAST + 4 * OUT)
    assert found["dp=2,tp=2"] < found["auto"]


def test_stages_hand_on_activations_and_no_parameters(trained):
    # Two stages: a chain goes to each once. An engine reads the results of the other stage for its own half of the batch, and what it is to
    # compute for the other half; in the backward pass the gradients of these.
    per_sample = 4 * (WIDTH + OUT)
    assert 0 < exchanged(trained, 2)["pipeline"] <= 4 * BATCH // 2 * per_sample


def test_an_exchange_takes_time(trained):
    slow, fast = (
        {
            plan.name: plan.seconds
            for plan in plans(type(trained)(**(vars(trained) | {"speeds": Speeds(num_bytes=speed)})), strategies_on("cpu"), [2])
        }
        for speed in (1e8, 1e10)
    )
    assert all(slow[name] > fast[name] for name in slow)
    assert slow["tensor"] < slow["zero3"] < slow["zero1"]
