"""Collectives over shared memory: exact in any size and type, the same on all ranks, and over at once when a rank leaves."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from typing import Any
from unittest import mock

import psutil
import pytest
import torch
import torch.distributed as dist

from jupyter_dtrain.engine.comm import collectives
from jupyter_dtrain.engine.comm.failures import FailedElsewhere, error_of, to_bytes
from jupyter_dtrain.engine.comm.mailbox import KEPT, RING
from jupyter_dtrain.engine.comm.process_group import mailbox, shared_memory
from jupyter_dtrain.engine.comm.shared_memory import SLOT, TOGETHER

from .ranks import RankError, Run

SIZES = [0, 1, 7, TOGETHER // 8, TOGETHER // 8 + 1, SLOT // 8, SLOT // 8 + 1, 3 * SLOT // 8 + 5]


def part(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.rand(size, generator=generator, dtype=torch.float64) * 100).to(dtype)


def sums(run: Run, dtype: torch.dtype) -> list[tuple[bool, int]]:
    """Return of each sum whether it is that of the parts in rank order, and a number that tells it from others."""
    assert shared_memory() is not None
    found = []
    for size in SIZES:
        value = part(run.rank, size, dtype)
        expected = part(0, size, dtype)
        for rank in range(1, run.world_size):
            expected += part(rank, size, dtype)
        collectives.all_reduce(value)
        found.append((torch.equal(value, expected), hash(value.view(torch.uint8).numpy().tobytes())))
    return found


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64, torch.uint8], ids=str)
def test_a_sum_is_added_up_in_rank_order_whatever_its_size(ranks, world_size, dtype):
    for found in ranks.call(world_size, sums, dtype):
        assert [equal for equal, _ in found] == [True] * len(SIZES)


def sum_after_inference_mode(run: Run) -> list[list[int]]:
    """Return sums within inference mode, where the first of their type are, and after it."""
    values = [torch.full((3,), run.rank + 1, dtype=torch.int16) for _ in range(2)]
    with torch.inference_mode():
        collectives.all_reduce(values[0])
    collectives.all_reduce(values[1])
    return [value.tolist() for value in values]


def test_a_sum_after_those_of_an_evaluation_in_inference_mode(ranks):
    assert ranks.call(2, sum_after_inference_mode) == [[[3] * 3] * 2] * 2


def scattered(run: Run) -> list[Any]:
    found = []
    for source in range(run.world_size):
        values = [{"of": source, "for": rank, "rows": part(rank, SIZES[-1], torch.float64)} for rank in range(run.world_size)]
        found.append(collectives.scatter_object(values if run.rank == source else None, source))
    return [(each["of"], each["for"], torch.equal(each["rows"], part(run.rank, SIZES[-1], torch.float64))) for each in found]


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_gets_its_own_of_the_objects_that_one_hands_out(ranks, world_size):
    for rank, found in enumerate(ranks.call(world_size, scattered)):
        assert found == [(source, rank, True) for source in range(world_size)]


def gathered(run: Run) -> list[bool]:
    found = []
    for size in SIZES:
        own = part(run.rank, size, torch.float64).reshape(size, 1)
        parts = [torch.empty_like(own) for _ in range(run.world_size)]
        collectives.all_gather(parts, own)
        found.append(all(torch.equal(p.reshape(-1), part(rank, size, torch.float64)) for rank, p in enumerate(parts)))
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_ranks_part_is_there_for_all(ranks, world_size):
    assert ranks.call(world_size, gathered) == [[True] * len(SIZES)] * world_size


def from_first(run: Run) -> list[bool]:
    found = []
    for size in SIZES:
        value = part(run.rank, size, torch.float32)
        collectives.broadcast(value)()
        found.append(torch.equal(value, part(0, size, torch.float32)))
    return found


def test_rank_0s_part_is_there_for_all(ranks):
    assert ranks.call(3, from_first) == [[True] * len(SIZES)] * 3


def exchanged(run: Run, reads: bool) -> list[bool]:
    """Return of each exchange whether all parts are there that are wanted."""
    found = []
    cases: list[list[list[int]]] = [[[3], [], [5, 0, 1]], [[SLOT - 1, 2], [7], [SLOT, SLOT]], [[], [3 * SLOT + 5], []], [[], [], []]]
    for sizes in cases:
        there = [[part(10 * rank + index, size, torch.uint8) for index, size in enumerate(of_rank)] for rank, of_rank in enumerate(sizes)]
        own = lambda rank: rank == run.rank  # noqa: E731
        parts = [
            [whole.clone() if own(rank) else torch.zeros_like(whole, device=None if reads else "meta") for whole in of_rank]
            for rank, of_rank in enumerate(there)
        ]
        collectives.exchange(parts, device=torch.device("cpu"))
        wanted = [rank for rank in range(3) if reads or own(rank)]
        found.append(all(torch.equal(*pair) for rank in wanted for pair in zip(parts[rank], there[rank], strict=True)))
    return found


def exchanged_in_part(run: Run) -> list[bool]:
    """Return of each of another rank's parts, of which every second one is wanted, whether it is there."""
    there = [[part(10 * rank + index, 5 + index, torch.uint8) for index in range(6)] for rank in range(run.world_size)]
    wanted = lambda index: index % 2 == run.rank % 2  # noqa: E731
    parts = [
        [
            whole.clone() if rank == run.rank else torch.zeros_like(whole, device=None if wanted(index) else "meta")
            for index, whole in enumerate(of_rank)
        ]
        for rank, of_rank in enumerate(there)
    ]
    collectives.exchange(parts, device=torch.device("cpu"))
    return [torch.equal(parts[rank][index], there[rank][index]) for rank in range(run.world_size) for index in range(6) if wanted(index)]


def exchanged_otherwise(run: Run) -> list[bool]:
    with (
        mock.patch.multiple(collectives, batch_memory=lambda: None, memory_of=lambda _: None),
        mock.patch.object(collectives, "PIECE", 1000),
    ):
        return exchanged(run, run.rank == 0)


@pytest.mark.long
def test_parts_of_different_sizes_are_there_for_all_who_want_them(ranks):
    assert ranks.call(3, exchanged, True) == ranks.call(3, exchanged, False) == [[True] * 4] * 3
    assert ranks.call(3, exchanged_otherwise) == [[True] * 4] * 3


def test_some_of_the_parts_that_go_together_are_there_for_who_wants_these(ranks):
    assert ranks.call(2, exchanged_in_part) == [[True] * 6] * 2


def objects(run: Run) -> list[Any]:
    small = collectives.all_gather_object({"rank": run.rank, "text": "ä" * run.rank})
    large = collectives.all_gather_object(list(range(run.rank * SLOT // 4)))
    return [small, [len(numbers) for numbers in large], [numbers[-1:] for numbers in large]]


def test_each_ranks_object_is_there_for_all(ranks):
    expected = [
        [{"rank": 0, "text": ""}, {"rank": 1, "text": "ä"}, {"rank": 2, "text": "ää"}],
        [0, SLOT // 4, SLOT // 2],
        [[], [SLOT // 4 - 1], [SLOT // 2 - 1]],
    ]
    assert ranks.call(3, objects) == [expected] * 3


def at_odds(run: Run, rounds: int) -> float:
    """Exchange again and again, where ranks take turns at being late."""
    value = torch.ones(3, dtype=torch.float64)
    for number in range(rounds):
        if number % run.world_size == run.rank:
            time.sleep(0.001)
        value[0] = number + run.rank
        collectives.all_reduce(value)
        assert value[0] == sum(number + rank for rank in range(run.world_size)), f"of exchange {number}"
        value /= run.world_size
    return float(value[1])


def test_nothing_is_written_over_before_the_others_have_read_it(ranks):
    assert ranks.call(3, at_odds, 300) == [1.0] * 3


def leave_in_the_middle(run: Run, how: str) -> str:
    collectives.all_reduce(torch.ones(1))
    if run.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), 9)
        raise ValueError("of rank 1")  # its process ends its connections when the test has heard of it
    began = time.monotonic()
    try:
        collectives.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        raise RuntimeError(f"freed after {'a moment' if time.monotonic() - began < 20 else 'long'}: {error}") from error
    return "went on"


def test_a_rank_that_is_killed_frees_the_others(ranks):
    with pytest.raises(RankError) as caught:
        ranks.call(3, leave_in_the_middle, "killed")
    assert str(caught.value).count("freed after a moment: Connection with rank") == 2


def interrupted(run: Run) -> None:
    """Go on, on rank 0, after it was interrupted where it waited for the other."""
    if run.rank == 0:
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            collectives.all_reduce(torch.ones(1))
        signal.signal(signal.SIGALRM, previous)
    dist.barrier()
    collectives.all_reduce(torch.ones(1))


def test_after_an_interrupt_no_exchange_takes_the_place_of_another(ranks):
    with pytest.raises(RankError) as caught:
        ranks.call(2, interrupted)
    for other in (0, 1):
        assert f"RuntimeError: Connection with rank {other}: it has left." in str(caught.value)


def different(run: Run) -> None:
    collectives.all_reduce(torch.ones(3 if run.rank else 4))


def test_ranks_that_exchange_something_else_are_told(ranks):
    with pytest.raises(RankError, match="The ranks are at different lines of the cell"):
        ranks.call(2, different)


def rows_to(run: Run, sizes: tuple[int, int]) -> torch.Tensor:
    """Return the rank's part of a sum of as many numbers as it has for each rank."""
    memory, out = shared_memory(), torch.zeros(sizes[run.rank])
    assert memory is not None
    memory.reduce_scatter([torch.arange(float(sizes[run.rank])) + run.rank for _ in range(run.world_size)], out, factor=1.0)
    return out


def test_ranks_that_add_up_parts_of_other_sizes_are_told(ranks):
    assert [found.tolist() for found in ranks.call(2, rows_to, (3, 3))] == [[1.0, 3.0, 5.0]] * 2
    with pytest.raises(RankError, match="The ranks are at different lines of the cell"):
        ranks.call(2, rows_to, (3, 4))


def failing_meanwhile(run: Run) -> tuple[list[str], list[float]]:
    """Fail on rank 1 while rank 0 is in an exchange; return of each what rank 0 hears, and a sum after it."""
    memory = shared_memory()
    assert memory is not None
    numbers, failures = torch.ones(2), []
    exchanges = [
        lambda: memory.all_reduce(numbers),
        lambda: memory.reduce_scatter([numbers, numbers], torch.zeros(2), factor=1.0),
        lambda: memory.exchange([[torch.ones(2, dtype=torch.uint8)], [torch.ones(2, dtype=torch.uint8)]]),
        lambda: memory.barrier(1),
    ]
    for number, exchange in enumerate(exchanges):
        if run.rank == 1:
            failures.append(memory.agree(to_bytes(ValueError(number))))
            continue
        with pytest.raises(FailedElsewhere) as caught:
            exchange()
        failures.append(caught.value.failures)
    memory.all_reduce(numbers)
    return [repr(error_of(failure, 1)) for _, failure in failures if failure is not None], numbers.tolist()


def test_who_is_in_an_exchange_hears_of_an_error_and_goes_on_with_the_others(ranks):
    errors = [f"ValueError({number})" for number in range(4)]
    assert ranks.call(2, failing_meanwhile) == [(errors, [2.0, 2.0])] * 2


def mailed(run: Run) -> list[bool]:
    """Send tensors of every kind to the other rank and back; return of each whether it came as it was."""
    memory = shared_memory()
    assert memory is not None
    box, other = mailbox(memory, (0, 1)), 1 - run.rank
    table = torch.arange(24.0).reshape(4, 6)
    kinds = [table, table.T, table[:, ::2], table[1:3, 2], table[:1].expand(3, 6), table.bfloat16(), table[:0], torch.tensor(3)]
    kinds += [torch.complex(table, -table).conj(), torch.complex(table, -table).conj().imag, table > 3]
    large = torch.full((KEPT // 8 + 1,), 0.5, dtype=torch.float64)
    found: list[bool] = []

    def take_in() -> None:
        for sender, message, tensors in box.received():
            expected = [large] if message == "large" else kinds
            found.extend(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(tensors, expected, strict=True))
            found.append(sender == other and message in ("large", {"number": other}))

    wanted = 0
    for message, tensors in (({"number": run.rank}, kinds), ("large", [large])) * 2:
        box.send(other, message, tensors)
        wanted += len(tensors) + 1
        box.wait(take_in, lambda wanted=wanted: len(found) == wanted)  # type: ignore[misc]
        memory.barrier(1)
    return found


def test_tensors_of_every_kind_are_sent_and_come_as_they_are(ranks):
    for found in ranks.call(2, mailed):
        assert found == [True] * 2 * (11 + 1 + 2)


def unread(run: Run) -> int:
    """Send messages to a rank that reads none; return how many there are."""
    memory = shared_memory()
    assert memory is not None
    box = mailbox(memory, (0, 1))
    if run.rank == 0:
        for _ in range(RING):
            box.send(1, "a message")
        with pytest.raises(RuntimeError, match="Rank 1 does not read what is sent to it"):
            box.send(1, "one too many")
    memory.barrier(1)
    return sum(1 for _ in box.received())


def test_who_reads_no_messages_is_sent_no_more(ranks):
    assert ranks.call(2, unread) == [0, RING]


def unanswered(run: Run) -> None:
    memory = shared_memory()
    assert memory is not None
    box = mailbox(memory, (0, 1))
    if run.rank == 0:
        with mock.patch.multiple("jupyter_dtrain.engine.comm.mailbox", LOOK=10, PATIENCE=2):
            box.wait(lambda: None, lambda: False)
    memory.barrier(1)


def test_who_waits_for_messages_of_a_rank_that_is_elsewhere_is_told(ranks):
    with pytest.raises(RankError) as caught:
        ranks.call(2, unanswered)
    assert str(caught.value).count("RuntimeError: The ranks are at different lines of the cell") == 2


def fork_and_leave(run: Run) -> list[float]:
    """Go on beside a process that was forked, and that ends: what it had of the connections is not theirs."""
    value = torch.ones(1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    collectives.all_reduce(value)
    return value.tolist()


def test_a_forked_process_that_ends_takes_nothing_with_it(ranks):
    assert ranks.call(2, fork_and_leave) == [[2.0], [2.0]]


def open_files(run: Run) -> tuple[int, list[str]]:
    process = psutil.Process()
    maps = [item.path for item in process.memory_maps(grouped=False) if "jupyter-dtrain" in item.path]
    return process.num_fds(), maps


def test_memory_and_connections_of_groups_that_were_left_are_given_back(ranks):
    found = [ranks.call(world_size, open_files)[0] for world_size in (2, 3, 2, 3, 2)]
    for (files, maps), (later_files, later_maps) in pairwise(found[::2]):
        assert later_files <= files + 1
        assert len(later_maps) == len(maps) == 2


def far(run: Run) -> tuple[bool, float]:
    value = torch.ones(1)
    collectives.all_reduce(value)
    return shared_memory() is None, value.item()


def forbid(run: Run) -> None:
    if run.rank == 1:
        mock.patch.object(os, "memfd_create", side_effect=PermissionError).start()


def test_where_one_rank_cannot_share_memory_all_go_by_the_process_group(ranks):
    ranks.call(2, forbid)
    try:
        ranks.call(3, far)  # another group, so that the next is a new one
        assert ranks.call(2, far) == [(True, 2.0)] * 2
    finally:
        ranks.call(2, unforbid)


def unforbid(run: Run) -> None:
    mock.patch.stopall()


def of_the_reducer(run: Run) -> tuple[bool, list[float]]:
    """Reduce gradients of many buckets, some of which a rank has nothing for."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(20)]).double()
    group = collectives.reducer_group()
    assert group is not None
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=1, init_sync=False)
    x = torch.full((2, 300), float(run.rank + 1), dtype=torch.float64)
    ddp(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for rank in range(run.world_size):
        (model(torch.full((2, 300), float(rank + 1), dtype=torch.float64)).sum() / run.world_size).backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    return dist.is_initialized(), [(a - b).abs().max().item() for a, b in zip(found, expected, strict=True)]


def test_pytorchs_reducer_adds_up_over_it(ranks):
    for _, differences in ranks.call(3, of_the_reducer):
        assert max(differences) < 1e-12
        assert len(differences) == 40
