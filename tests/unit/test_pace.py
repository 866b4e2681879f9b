"""How long a run still takes: which loops are known to end, and how fast they go."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.resume.loops import Loops
from jupyter_dtrain.engine.telemetry.progress import fraction_done
from jupyter_dtrain.runs.run_progress import Pace


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def places(cell: str) -> list[float | None]:
    """Return what is done at each boundary at which the cell has called `step` since the one before."""
    found: list[float | None] = []
    steps: list[int] = []

    def at_boundary() -> None:
        if steps:
            steps.clear()
            around = loops.places.around()
            found.append(None if around is None else fraction_done(around))

    loops = Loops(on_boundary=at_boundary, say=lambda _: None)
    namespace = {
        "__name__": "__main__",
        "step": lambda: steps.append(1),
        "loader": DataLoader(TensorDataset(torch.arange(8)), batch_size=2),
        "endless": DataLoader(Endless()),
    }
    with loops.installed():
        run_cell(cell, "cell", namespace, loops)
    return found


@pytest.mark.parametrize(
    "cell",
    [
        "for i in range(4):\n    step()",
        "for i, j in enumerate([1, 2, 3, 4]):\n    step()",
        "for i, j in zip(range(4), (1, 2, 3, 4, 5)):\n    step()",
        "from tqdm import tqdm\nfor i in tqdm(range(4)):\n    step()",
        "for x in loader:\n    step()",
        "from tqdm import tqdm\nfor i, x in tqdm(enumerate(loader), total=len(loader)):\n    step()",
        "it = iter([1, 2, 3, 4])\nfor i in it:\n    step()",
    ],
)
def test_a_loop_that_says_how_long_it_is(cell):
    *before, last = places(cell)
    assert before == pytest.approx([0.25, 0.5, 0.75])
    assert last == 1


def test_loops_inside_loops_and_functions():
    cell = """
def train(epochs):
    for epoch in range(epochs):
        for x in loader:
            step()
        for x in loader:
            pass  # evaluation moves nothing
for rate in (0.1, 0.2):
    train(epochs=2)
"""
    assert places(cell) == pytest.approx([k / 16 for k in range(1, 17)])


@pytest.mark.parametrize(
    "cell",
    [
        "i = 0\nwhile i < 4:\n    step()\n    i += 1",
        "for epoch in range(2):\n    for x in endless:\n        step()",
        "for i in (j for j in range(4)):\n    step()",
        "import itertools\nfor i in itertools.count():\n    step()\n    if i > 2:\n        break",
        "def train(rate):\n    for x in loader:\n        step()\nimport functools\nfunctools.reduce(lambda _, rate: train(rate), [1, 2])",
    ],
)
def test_a_loop_of_unknown_length_leaves_all_unknown(cell):
    assert set(places(cell)) == {None}


def test_the_time_that_is_left_is_told_after_a_while():
    pace = Pace()
    assert (pace.fraction, pace.remaining()) == (None, None)
    pace.add(100.0, 0.1)
    pace.add(101.0, 0.2)
    assert (pace.fraction, pace.remaining()) == (0.2, None)
    pace.add(102.0, 0.3)
    assert pace.remaining() == pytest.approx(7.0)


def test_the_speed_of_late_counts():
    pace = Pace()
    for second in range(1001):
        pace.add(second, second / 10_000)
    for second in range(1, 2001):
        pace.add(1000 + second, 0.1 + second / 4000)
    assert pace.remaining() == pytest.approx((1 - 0.6) * 4000, rel=0.05)


def test_waiting_does_not_count_and_going_back_begins_anew():
    pace = Pace()
    for second in range(5):
        pace.add(second, second / 100)
    pace.stand_still()
    assert (pace.fraction, pace.remaining()) == (0.04, None)
    for second in range(5):
        pace.add(1000 + second, 0.05 + second / 100)
    assert pace.remaining() == pytest.approx(91)
    pace.add(1010, 0.01)
    assert (pace.fraction, pace.remaining()) == (0.01, None)
    pace.clear()
    assert pace.fraction is None
