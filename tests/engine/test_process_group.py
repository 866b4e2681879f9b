"""Groups of ranks: joined and left many times, never a trap for who stays, and heard on this machine alone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from jupyter_dtrain.cluster.endpoint import FileEndpoint
from jupyter_dtrain.engine.backward.gradient_sync import GradientSync
from jupyter_dtrain.engine.comm.process_group import ProcessGroup, Rendezvous

LIMIT = 100.0  # seconds; what is waited for below takes a moment, this is for the day it never comes
TIMEOUT = timedelta(minutes=10)  # of the groups: nobody may have to wait for it
CPU = torch.device("cpu")
NUM_CYCLES = 40
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.engine.ranks", "torch._dynamo"])


class Meeting:
    """A rank's line to the test, by which the ranks also tell each other where to meet."""

    def __init__(self, line: Connection, rank: int, world_size: int) -> None:
        self.line, self.rank, self.world_size = line, rank, world_size
        self.group = ProcessGroup()

    def place(self, generation: str) -> Rendezvous:
        """Return where the ranks meet; rank 0 chooses it."""
        if self.rank == 0:
            self.line.send(("place", Rendezvous(FileEndpoint(Path(tempfile.mkdtemp()) / generation), key=b"of these ranks")))
        rendezvous: Rendezvous = self.line.recv()
        return rendezvous

    def join(self, generation: str) -> None:
        self.group.join(self.place(generation), rank=self.rank, world_size=self.world_size, device=CPU, timeout=TIMEOUT)


def _rank(function: Callable[[Meeting], Any], line: Connection, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    try:
        line.send(("done", function(Meeting(line, rank, world_size))))
    except BaseException:
        line.send(("failed", traceback.format_exc()))
    line.recv()  # stay until all have answered
    os._exit(0)


@pytest.fixture
def on_ranks() -> Iterator[Callable[[int, Callable[[Meeting], Any]], list[Any]]]:
    """Return a function that calls another on new ranks and returns what each returned."""
    started = []

    def call(world_size: int, function: Callable[[Meeting], Any]) -> list[Any]:
        lines = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(function, theirs, rank, world_size), daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
            lines.append(ours)
        answers: dict[int, Any] = {}
        end = time.monotonic() + LIMIT
        while len(answers) < world_size:
            for rank, line in enumerate(lines):
                if rank in answers or not line.poll(0.01):
                    continue
                kind, value = line.recv()
                assert kind != "failed", value
                if kind == "done":
                    answers[rank] = value
                else:
                    for other in lines:
                        other.send(value)
            assert time.monotonic() < end, f"only ranks {sorted(answers)} have answered"
        return [answers[rank] for rank in range(world_size)]

    yield call
    for process, line in started:
        line.close()
        process.kill()
        process.join(LIMIT)


def join_and_leave(meeting: Meeting) -> list[tuple[list[float], int, int]]:
    found = []
    kept = []  # models and gradients outlive their group, as those of a notebook do
    process = psutil.Process()
    gc.freeze()  # leaving looks for garbage: not in all of PyTorch, here
    for number in range(NUM_CYCLES):
        meeting.join(f"generation {number}")
        torch.manual_seed(number)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        x = torch.arange(4.0, dtype=torch.float64).reshape(2, 2) + number
        sync = GradientSync(world_size=2, weight_of=lambda _: 0.5, on_computed=lambda: None)
        sync.register(model)
        loss = model(x[meeting.rank :][:1]).mean()
        sync.backward(torch.autograd.backward, [loss], [None], inputs=None)
        sync.close()
        meeting.group.leave()
        kept.append((model, loss))
        found.append(([p.grad.sum().item() for p in model.parameters() if p.grad is not None], process.num_fds(), process.num_threads()))
    assert not dist.is_initialized()
    return found


def test_groups_are_joined_and_left_many_times(on_ranks):
    first, second = on_ranks(2, join_and_leave)
    for number, (mine, others) in enumerate(zip(first, second, strict=True)):
        torch.manual_seed(number)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        model(torch.arange(4.0, dtype=torch.float64).reshape(2, 2) + number).mean().backward()
        expected = [p.grad.sum().item() for p in model.parameters() if p.grad is not None]
        assert len(expected) == 4
        assert mine[0] == pytest.approx(expected, rel=1e-12)
        assert others[0] == pytest.approx(expected, rel=1e-12)
    for rank in (first, second):
        files, threads = [files for _, files, _ in rank], [threads for *_, threads in rank]
        assert max(files[-5:]) <= max(files[5:10]) + 2, "open files do not add up"
        assert max(threads[-5:]) <= max(threads[5:10]) + 2, "nor do threads"


def leave_the_others_waiting(meeting: Meeting) -> str:
    meeting.join("only")
    dist.barrier()
    if meeting.rank == 1:
        meeting.group.leave()
        return "left"
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError:
        meeting.group.leave()  # as an engine does whose cell has failed; so the next one is freed
        return "freed"
    return "went on"


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_that_leaves_frees_the_others(on_ranks, world_size):
    assert on_ranks(world_size, leave_the_others_waiting) == ["freed", "left", "freed"][:world_size]


def meet_again(meeting: Meeting) -> list[float]:
    """Fail in one group, meet in the next."""
    leave_the_others_waiting(meeting)
    meeting.join("next")
    value = torch.tensor([float(meeting.rank + 1)])
    dist.all_reduce(value)
    meeting.group.leave()
    return value.tolist()


def test_who_was_freed_joins_the_next_group(on_ranks):
    assert on_ranks(3, meet_again) == [[6.0]] * 3


def listening_addresses(meeting: Meeting) -> tuple[list[str], bool]:
    meeting.join("only")
    dist.all_reduce(torch.ones(1))
    listening = [c.laddr.ip for c in psutil.Process().net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
    dist.barrier()
    meeting.group.leave()
    return listening, dist.is_initialized()


def test_ranks_listen_on_loopback_only(on_ranks):
    for rank, (addresses, _) in enumerate(on_ranks(2, listening_addresses)):
        assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}, f"rank {rank}"


def join_twice(meeting: Meeting) -> tuple[bool, bool, int, int]:
    place = meeting.place("first")
    options: dict[str, Any] = {"rank": meeting.rank, "world_size": 2, "device": CPU, "timeout": TIMEOUT}
    store = meeting.group.join(place, **options)
    same = meeting.group.join(place, **options)
    before = dist.distributed_c10d._get_default_group()
    other = meeting.group.join(meeting.place("second"), **options)
    after = dist.distributed_c10d._get_default_group()
    value = torch.ones(1)
    dist.all_reduce(value)
    store_works = other.add("count", 1)
    dist.barrier()
    total = other.add("count", 0)
    meeting.group.leave()
    meeting.group.leave()  # nothing to leave is no error
    return store is same, before is after, int(value.item()), total if store_works else -1


def test_who_is_in_a_group_already_stays(on_ranks):
    assert on_ranks(2, join_twice) == [(True, False, 2, 2)] * 2


def nobody_comes(meeting: Meeting) -> tuple[str, list[float]]:
    place = meeting.place("lonely")
    try:
        meeting.group.join(place, rank=0, world_size=2, device=CPU, timeout=timedelta(seconds=1))
    except RuntimeError as error:
        failure = type(error).__name__
    alone = meeting.place("alone")
    meeting.group.join(alone, rank=0, world_size=1, device=CPU, timeout=TIMEOUT)
    value = torch.ones(1)
    dist.all_reduce(value)
    meeting.group.leave()
    return failure, value.tolist()


def test_waiting_for_ranks_that_never_come_ends(on_ranks):
    ((failure, value),) = on_ranks(1, nobody_comes)
    assert failure.startswith("Dist")
    assert value == [1.0]
