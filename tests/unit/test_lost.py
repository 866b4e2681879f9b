"""What is said of engines that were lost."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.elastic.failure_report import lost_engines
from jupyter_dtrain.elastic.worker_group import WorkerResult, reasons_of
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.protocol import DeviceUse
from jupyter_dtrain.transport.parcel import Parcel

GIB = 1 << 30


def cluster(*devices: str, status: int = -signal.SIGKILL) -> Any:
    engines = [SimpleNamespace(rank=rank, pid=100 + rank, device=device) for rank, device in enumerate(devices)]
    return SimpleNamespace(engines=engines, last_words=lambda rank: f"the log of {rank}", exit_status=lambda _: status, unreachable="")


def test_none_was_lost():
    assert lost_engines([WorkerResult(0, None), WorkerResult(1, None, "it did not leave", killed=True)], cluster("cpu", "cpu"), []) is None


def test_what_an_engine_held_is_told_where_it_has_told_it():
    ends = [WorkerResult(0, None), WorkerResult(1, None, "its process has ended")]
    uses = [DeviceUse(rank=rank, time=0.0, utilization=50.0, memory_used=(rank + 2) * GIB, memory_total=64 * GIB) for rank in (0, 1)]
    for device, where in (("cpu", "the 64.0 GiB that it may have"), ("cuda:0", "its device's 64.0 GiB")):
        said = str(lost_engines(ends, cluster("cpu", device), uses))
        assert f"killed by the OOM killer (rank 1 held 3.0 GiB of {where} when last measured). " in said
        assert said.startswith(
            "The engine of rank 1 (process 101) was lost: its process has ended. The notebook's objects are as they were"
        )
        assert said.endswith("Its last output:\nthe log of 1")
    assert "killed by the OOM killer. " in str(lost_engines(ends, cluster("cpu", "cpu"), uses[:1]))


def test_several_that_were_lost_are_told_of_as_several():
    ends = [WorkerResult(0, None, "its process has ended"), WorkerResult(1, None, "its process has ended")]
    said = str(lost_engines(ends, cluster("cpu", "cpu"), []))
    assert said.startswith("The engines of rank 0 (process 100), rank 1 (process 101) were lost: their processes have ended. ")
    assert reasons_of(ends[:1]) == "its process has ended"
    assert (
        reasons_of([ends[0], WorkerResult(1, None, "it does not answer any more")]) == "its process has ended, it does not answer any more"
    )


def test_of_many_that_were_lost_some_are_named():
    ends = [WorkerResult(rank, None, "its process has ended") for rank in range(300)]
    said = str(lost_engines(ends, cluster(*["cpu"] * 300), []))
    assert "rank 7 (process 107) and 292 more were lost: their processes have ended. " in said
    assert len(said) < 1000


@pytest.mark.parametrize(("steps", "when"), [(0, "that moment"), (7, "its last finished step (7)")])
def test_what_the_notebook_holds_is_told(steps, when):
    home = Outcome(rank=0, failure=None, stopped=False, steps=steps, parcel=Parcel(b"", [], []))
    ends = [WorkerResult(0, home), WorkerResult(1, None, "its process has ended")]
    assert f"The notebook holds what rank 0 had at {when}. " in str(lost_engines(ends, cluster("cpu", "cpu"), []))


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (-signal.SIGSEGV, "It was ended by SIGSEGV: compiled code has crashed"),
        (-signal.SIGABRT, "It was ended by SIGABRT: compiled code has crashed"),
        (3, "It ended by itself, with status 3: "),
        (-signal.SIGKILL, "killed by the OOM killer"),
    ],
)
def test_how_an_engine_has_ended_says_why(status, why):
    said = str(
        lost_engines([WorkerResult(0, None, "its process has ended"), WorkerResult(1, None)], cluster("cpu", "cpu", status=status), [])
    )
    assert why in said
    assert ("memory" in said) == (status == -signal.SIGKILL)
