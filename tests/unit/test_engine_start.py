"""What is told while engines start: the last line says that they are ready, however that came."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from jupyter_dtrain.elastic.engine_start import start_warm


class StartedCluster:
    """A cluster of two engines, of which each waits for torch or has it."""

    engine_ids = (0, 1)

    def __init__(self, warm):
        self.warm = warm

    def wait_warm(self, limit):
        self.warm = True


@pytest.mark.parametrize(
    ("warm", "said", "told"),
    [
        (False, ["0 of 2 engines up"], ["0 of 2 engines up", "the engines import torch", "2 engines ready"]),
        (True, ["0 of 2 engines up"], ["0 of 2 engines up", "2 engines ready"]),  # torch was there before somebody looked
        (True, [], []),  # they were running
    ],
)
def test_the_last_line_says_that_the_engines_are_ready(warm, said, told):
    shown: list[str] = []

    def start(tell):
        for sentence in said:
            tell(sentence)
        return StartedCluster(warm)

    cluster = start_warm(cast("Any", start), timedelta(seconds=1), shown.append)
    assert cluster.warm
    assert shown == told
