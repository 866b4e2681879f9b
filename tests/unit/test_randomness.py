"""Random streams of a rank: the cell's is the same on every rank, the model's is the rank's own, and neither disturbs the other."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from jupyter_dtrain.capture.random_state import RandomState
from jupyter_dtrain.engine.rng.streams import LoadingStream, ModelStream


@pytest.fixture(autouse=True)
def streams_of_this_process() -> Iterator[None]:
    before = RandomState.now()
    seed(0)
    yield
    before.set()


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def draw() -> list[float]:
    return torch.rand(3).tolist()


def draw_all() -> tuple[list[float], float, float]:
    return draw(), float(np.random.rand()), random.random()


def drawn_in_models(rank: int, start: int = 0) -> list[list[float]]:
    """Return what two calls of a model draw on `rank`, and check the cell's own draws between them."""
    seed(start)
    expected = [draw() for _ in range(3)]
    seed(start)
    stream = ModelStream(rank)
    inside = []
    for number in range(3):
        assert draw() == expected[number], "the cell draws what it would without models"
        stream.switch()
        inside.append(draw())
        stream.switch()
    return inside


def test_models_draw_from_a_stream_of_the_ranks_own():
    first, second = drawn_in_models(0), drawn_in_models(1)
    assert all(mine != others for mine in first for others in second)
    assert first[0] != first[1] != first[2], "it goes on from call to call"


def test_a_seeded_cell_is_seeded_inside_models_too():
    assert drawn_in_models(2) == drawn_in_models(2)
    assert drawn_in_models(2, start=5) != drawn_in_models(2)


def test_making_the_streams_draws_nothing():
    expected = draw_all()
    seed(0)
    ModelStream(3)
    LoadingStream(3)
    assert draw_all() == expected


def test_loading_draws_from_a_stream_of_the_ranks_own():
    expected = [draw_all() for _ in range(2)]
    found = {}
    for rank in (0, 1):
        seed(0)
        stream = LoadingStream(rank)
        assert draw_all() == expected[0]
        with stream.loading():
            found[rank] = draw_all()
        assert draw_all() == expected[1]
    assert all(mine != others for mine, others in zip(found[0], found[1], strict=True)), "PyTorch's, NumPy's and Python's"


def test_the_order_of_samples_is_drawn_from_the_cells_stream():
    expected = [draw_all() for _ in range(3)]
    seed(0)
    stream = LoadingStream(1)
    with stream.drawing():
        assert draw_all() == expected[0], "outside of loading there is only the cell's"
    with stream.loading():
        own = draw_all()
        with stream.drawing():
            assert draw_all() == expected[1]
        assert draw_all() not in (own, expected[2])
    assert draw_all() == expected[2]


def test_an_error_while_loading_leaves_the_cells_stream_in_use():
    expected = draw_all()
    seed(0)
    stream = LoadingStream(1)

    def load() -> None:
        with stream.loading():
            draw_all()
            raise KeyError

    with pytest.raises(KeyError):
        load()
    assert draw_all() == expected


def test_the_state_of_a_process_comes_back():
    state = RandomState.now()
    expected = draw_all(), random.gauss(0, 1), float(np.random.randn())
    state.set()
    assert (draw_all(), random.gauss(0, 1), float(np.random.randn())) == expected
