"""What is in force of a run: within its blocks, and not behind them, however these end."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from jupyter_dtrain.engine.current_run import CurrentRun, current_run
from jupyter_dtrain.engine.tensor.caught import Catches, may_be_caught
from jupyter_dtrain.engine.tensor.rank0_guard import Alone, all_ranks_come, alone_now
from jupyter_dtrain.engine.tensor.thread_guard import Turns
from jupyter_dtrain.engine.timing import DATA, Counted, Timing


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nothing_of_a_run_is_in_force_behind_it(error):
    timing, parts = Timing(0, torch.device("cpu")), (Alone({}), Catches({}), Turns())
    with pytest.raises(error) if error is not None else ExitStack(), ExitStack() as stack:
        timing.start()
        stack.callback(timing.stop)
        for part in parts:
            stack.enter_context(part.installed())
        assert current_run == CurrentRun(timing, *parts)
        if error is not None:
            raise error
    assert current_run == CurrentRun()


def test_outside_of_a_run_nobody_looks():
    assert not may_be_caught()
    assert not alone_now()
    all_ranks_come()
    with Counted(DATA):
        assert current_run.timing is None
