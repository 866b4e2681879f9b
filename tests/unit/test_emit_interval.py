"""How often ranks send what they have to tell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jupyter_dtrain.engine.telemetry.emitter import interval_for

USUAL = timedelta(milliseconds=200)


@pytest.mark.parametrize(
    ("world_size", "seconds"),
    [
        pytest.param(2, 0.2, id="few"),
        pytest.param(100, 0.2, id="a hundred"),
        pytest.param(512, 1.024, id="many send more seldom"),
        pytest.param(10_000, 2.0, id="but often enough not to be taken for dead"),
    ],
)
def test_the_kernel_gets_no_more_messages_of_many_ranks(world_size, seconds):
    assert interval_for(world_size, USUAL).total_seconds() == pytest.approx(seconds)
