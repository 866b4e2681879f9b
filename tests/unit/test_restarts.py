"""Engines that are to be restarted in a run: none is forgotten, and what comes too late is answered."""

import pytest

from jupyter_dtrain.elastic.recovery import Restarts
from jupyter_dtrain.errors import UsageError


def test_what_is_lost_beside_it_leaves_a_restart_to_be_done():
    restarts = Restarts()
    for rank in (3, 1, 1):
        restarts.order(rank)
    assert not restarts.replace([0, 3])  # of which rank 0 has died by itself
    assert restarts.ranks == [1]
    assert restarts.replace([1])
    assert restarts.close() == []


def test_an_engine_that_moves_up_is_the_one_that_is_restarted():
    restarts = Restarts()
    for rank in (0, 2, 3, 5):
        restarts.order(rank)
    restarts.drop([4, 1, 3])
    assert restarts.ranks == [0, 1, 2]


def test_what_a_run_has_not_come_to_is_left_and_what_comes_later_is_refused():
    restarts = Restarts()
    restarts.order(1)
    assert restarts.close() == [1]
    with pytest.raises(UsageError, match="The run has just ended: try again"):
        restarts.order(0)
    assert restarts.close() == [1]
