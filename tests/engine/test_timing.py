"""Where the time of a rank goes, in cells that spend it on purpose."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from jupyter_dtrain.protocol import Message, TimeSplit
from jupyter_dtrain.runs.rank_reports import PARTS
from tests.engine.ranks import Ranks, Run

PAUSE = 0.06  # seconds, much longer than all else in a step of these models, on a busy machine too
STEPS = 8


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as ranks:
        ranks.call(2, split_of_a_run, "other", None)  # what a process does in its first run only
        yield ranks


class Slow(nn.Linear):
    """A layer that takes its time, on one rank or on all."""

    pause = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pause)
        return super().forward(x)


class SlowData(Dataset[Any]):
    pause = 0.0

    def __len__(self) -> int:
        return 8 * (1 + STEPS)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.pause)
        return torch.full((4,), float(index) / 64)


class SlowSGD(torch.optim.SGD):
    pause = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.pause)
        return super().step(closure)


def split_of_a_run(run: Run, where: str, rank: int | None) -> dict[str, float]:
    """Train, with a pause at some place of each step on `rank` (``None``: all), and return the rank's seconds by part.

    The first step is left out: more calls of the model belong to it, which are made to learn from.
    """
    torch.manual_seed(0)
    pause = PAUSE if rank in (None, run.rank) else 0.0
    model, data = Slow(4, 4), SlowData()
    optimizer = SlowSGD(model.parameters(), lr=0.1)
    if where == "forward":
        model.pause = pause
    elif where == "data":
        data.pause = pause / (8 / run.world_size)  # a sample
    elif where == "optimizer":
        optimizer.pause = pause
    loader = DataLoader(data, batch_size=8)
    training = run.training(model, optimizer)
    first: Message | None = None
    with training.installed():
        for batch in loader:
            loss = model(batch).square().mean()
            if where == "backward":
                loss.register_hook(lambda _: time.sleep(pause))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if where == "other":
                time.sleep(pause)
            if first is None:
                (first,) = run.timing.drain(1)
    (found,) = run.timing.drain(1 + STEPS)
    assert isinstance(found, TimeSplit)
    return {part: getattr(found, part) - getattr(first, part) for part in PARTS}


@pytest.mark.parametrize("where", [part for part in PARTS if part != "communication"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_pause_is_found_in_the_part_where_it_is(ranks, where, world_size):
    for split in ranks.call(world_size, split_of_a_run, where, None):
        # Not how much of all: on a busy machine whatever else there is takes longer too.
        assert max(split, key=split.__getitem__) == where
        assert split[where] > 0.5 * STEPS * PAUSE


@pytest.mark.parametrize("where", ["forward", "data", "backward"])
def test_the_other_rank_waits_for_the_slow_one_and_it_is_called_communication(ranks, where):
    waiting, slow = ranks.call(2, split_of_a_run, where, 1)
    assert waiting["communication"] > 0.5 * STEPS * PAUSE
    assert max(waiting, key=waiting.__getitem__) == "communication"
    assert max(slow, key=slow.__getitem__) == where
    assert slow["communication"] < waiting["communication"]
