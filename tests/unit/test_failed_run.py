"""Which rank of a failed run is looked at, and what is said where there is nothing to look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.elastic.failed_run import FailedRun
from jupyter_dtrain.elastic.worker_group import WorkerResult
from jupyter_dtrain.engine.cell import Failure
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.strategies import find


def end(rank: int, name: str = "", *, secondary: bool = False, reason: str = "") -> WorkerResult:
    failure = Failure(name, "bad.", [], secondary) if name else None
    return WorkerResult(rank, None if reason else Outcome(rank=rank, failure=failure, stopped=False, steps=0), reason)


def run(*ends: WorkerResult, strategy: str = "auto", alive: bool = True) -> FailedRun:
    task: Any = SimpleNamespace(run_id="run", strategy=find(strategy))
    cluster: Any = SimpleNamespace(engine_ids=[*range(len(ends))], controller_alive=alive, has_ended=lambda _: False)
    return FailedRun(task, cluster, ends, restart=lambda _cluster, _ranks: None)


def test_the_rank_whose_error_is_its_own_is_looked_at():
    failed = run(end(0, "RuntimeError", secondary=True), end(1), end(2, "KeyError"))
    assert failed.has_failed
    assert failed.rank_at_fault() == 2
    assert failed.rank_at_fault(0) == 0
    assert failed.headline(2) == (
        "Post-mortem of rank 2: KeyError: bad. `%distribute debug --rank N` looks at rank 0. q leaves and frees the frames."
    )


def test_a_run_that_has_not_failed():
    assert not run(end(0), end(1)).has_failed


@pytest.mark.parametrize(
    ("ends", "rank", "strategy", "sentence"),
    [
        (
            (end(0), end(1, "KeyError")),
            0,
            "auto",
            "Rank 0 had no error, so it keeps no frames. `%distribute debug --rank N` looks at rank 1.",
        ),
        ((end(0), end(1, "KeyError")), 2, "auto", "--rank 2: the cell ran on 2 ranks, counted from 0."),
        ((end(0, "KeyError"),), None, "none", "No frames are kept of a cell with --strategy none: its engines are restarted after it."),
        (
            (end(0, "RuntimeError", secondary=True), end(1, reason="its process has ended")),
            None,
            "auto",
            "The engine of rank 1 was lost, and the frames of its cell with it.",
        ),
    ],
)
def test_what_is_said_where_there_are_no_frames(ends, rank, strategy, sentence):
    with pytest.raises(UsageError) as raised:
        run(*ends, strategy=strategy).rank_at_fault(rank)
    assert str(raised.value).startswith(sentence)


def test_engines_that_have_stopped():
    failed = run(end(0, "KeyError"), end(1, "KeyError"), alive=False)
    assert failed.begin(0, "nocolor") == ("The engine of rank 0 is gone, and the frames with it.\n", True)
