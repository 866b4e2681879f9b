"""A snapshot has the state of one moment, however long it takes to be written, and is told of when it is."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from jupyter_dtrain.engine import staging
from jupyter_dtrain.engine.cell_results import CellResults
from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.control import Control
from jupyter_dtrain.engine.resume.position import FramePosition, Position
from jupyter_dtrain.engine.send_checks import CannotSave
from jupyter_dtrain.engine.side_effects.shown_output import Shown
from jupyter_dtrain.engine.snapshot import memory_ahead
from jupyter_dtrain.engine.snapshot.rank_state import RankState
from jupyter_dtrain.engine.snapshot.snapshot_files import read_snapshot, snapshot_blobs, unasked_number
from jupyter_dtrain.engine.snapshot.snapshotter import Snapshots
from jupyter_dtrain.engine.staging import Staging, bytes_of_state
from jupyter_dtrain.engine.strategies.base import Strategy
from jupyter_dtrain.engine.telemetry.notices import Notices
from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.protocol import Notice, SnapshotTaken, StateSize, TakeSnapshot
from jupyter_dtrain.serialization.leaves import Leaf
from jupyter_dtrain.serialization.pickler import Packed
from jupyter_dtrain.serialization.unpickler import Unpacker
from jupyter_dtrain.system.resources import Memory
from jupyter_dtrain.transport.blob_store import SMALLEST, BlobFolder
from jupyter_dtrain.transport.parcel import from_parcel
from tests.fakes import FakeEmitter


class Places:
    def position(self) -> Position:
        return Position((FramePosition("cell", "<module>", 1, 0, 1, ()),))

    def values(self) -> list[dict[str, Any]]:
        return []


class Loops:
    places = Places()


class Alone(Strategy):
    """That of a rank beside which there is no other."""

    def __init__(self) -> None:
        pass

    def installed(self) -> AbstractContextManager[None]:
        return nullcontext()


class Rank:
    """One rank, whose cell holds a large tensor and a small one."""

    def __init__(self, folder: Path, every: int | None = None) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.large, self.small, self.items = torch.zeros(SMALLEST), torch.zeros(3), [1]
        self.namespace: dict[str, Any] = {}
        self.home = CellResults(self.namespace, [])
        self.namespace |= {"large": self.large, "small": self.small, "items": self.items}
        talk = StoreChannel(HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5))
        self.control = Control(talk)
        self.emitter, self.observer = FakeEmitter(), Observer(0)
        self.optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        state = RankState(
            rank=0,
            home=self.home,
            loops=Loops(),  # type: ignore[arg-type]
            strategy=Alone(),
            observer=self.observer,
            shown=Shown(),
            skip={},
            from_cpu=False,
        )
        self.snapshots = Snapshots(
            folder,
            state,
            rank=0,
            world_size=2,
            generation=0,
            talk=talk,
            control=self.control,
            observer=self.observer,
            emitter=self.emitter,  # type: ignore[arg-type]
            notes=Notices(self.emitter.emit, rank=0),
            every=every,
        )

    def come_to_boundary(self, number: int) -> None:
        self.control.take(TakeSnapshot(number=number))
        self.snapshots.at_boundary()

    def change(self) -> None:
        self.large += 1
        self.small += 1
        self.items.append(2)

    def saved(self, number: int) -> dict[str, Any]:
        packed = from_parcel(read_snapshot(self.folder, number, 0).parcel, BlobFolder(snapshot_blobs(self.folder, number)))
        unpacker = Unpacker(packed, namespace={})
        head = unpacker.load()
        assert not head.others
        return {name: unpacker.load() for name in head.names}

    def walk(self, steps: int) -> None:
        for _ in range(steps):
            self.observer.on_optimizer_step(self.optimizer)
            self.snapshots.at_boundary()


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path / "snapshots")


@pytest.fixture
def slow_disk(monkeypatch):
    """Let nothing be written before the event is set."""
    event, write = threading.Event(), BlobFolder.write
    monkeypatch.setattr(BlobFolder, "write", lambda *args, **options: (event.wait(10), write(*args, **options)))
    return event


def test_what_changes_while_it_is_written_is_as_it_was(rank, slow_disk):
    with rank.snapshots.finished():
        rank.come_to_boundary(1)
        rank.change()
        assert not rank.emitter.of(SnapshotTaken), "it does not count before it is written"
        slow_disk.set()
    (taken,) = rank.emitter.of(SnapshotTaken)
    assert taken.place
    assert taken.keys == [path.name for path in snapshot_blobs(rank.folder, 1).iterdir()]
    saved = rank.saved(1)
    assert not saved["large"].any()
    assert not saved["small"].any()
    assert saved["items"] == [1]


def test_the_next_one_waits_for_the_memory(rank, slow_disk):
    with rank.snapshots.finished():
        rank.come_to_boundary(1)
        rank.change()
        threading.Timer(0.05, slow_disk.set).start()
        rank.come_to_boundary(2)
        rank.change()
    assert [taken.number for taken in rank.emitter.of(SnapshotTaken)] == [1, 2]
    assert [rank.saved(number)["large"].unique().item() for number in (1, 2)] == [0, 1]


def test_what_stays_the_same_is_written_once(rank):
    with rank.snapshots.finished():
        rank.come_to_boundary(1)
        rank.come_to_boundary(2)
    one, two = ({path.name: path.stat().st_ino for path in snapshot_blobs(rank.folder, number).iterdir()} for number in (1, 2))
    assert one == two


def test_what_cannot_be_written_is_told(rank, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(BlobFolder, "write", fail)
    with rank.snapshots.finished():
        rank.come_to_boundary(1)
    (taken,) = rank.emitter.of(SnapshotTaken)
    assert not taken.place
    assert any(isinstance(message, Notice) and "no disk" in message.text for message in rank.emitter.told)
    monkeypatch.undo()
    with rank.snapshots.finished():
        rank.come_to_boundary(2)
    assert not rank.saved(2)["large"].any()


def test_what_there_is_no_memory_for_is_not_copied(rank, monkeypatch):
    """Linux would end the process of who asks for more than there is."""
    gigabyte = 1 << 30
    monkeypatch.setattr(staging, "LARGE", 0)
    monkeypatch.setattr(staging, "memory", lambda: Memory(gigabyte // 20, gigabyte))
    for number in (1, 2):
        rank.come_to_boundary(number)
    assert not any(taken.place for taken in rank.emitter.of(SnapshotTaken))
    (notice,) = [message for message in rank.emitter.told if isinstance(message, Notice)]
    assert "not enough memory" in notice.text
    monkeypatch.setattr(staging, "memory", lambda: Memory(gigabyte, gigabyte))
    with rank.snapshots.finished():
        rank.come_to_boundary(3)
    assert rank.emitter.of(SnapshotTaken)[-1].place


@pytest.mark.parametrize(("left", "is_enough"), [(1024, True), (1023, False)])
def test_memory_for_copies_is_what_all_ranks_need(monkeypatch, left, is_enough):
    monkeypatch.setattr(staging, "LARGE", 0)
    monkeypatch.setattr(staging, "SPARE", 0)
    monkeypatch.setattr(staging, "memory", lambda: Memory(left, 10_000))
    ready = Staging(num_ranks=4)
    with nullcontext() if is_enough else pytest.raises(MemoryError):
        ready.make_ready(128)  # four copies, and what is written of each
        monkeypatch.setattr(staging, "memory", lambda: Memory(128, 10_000))
        ready.copied(packed_of([memoryview(bytes(128))]))  # into memory that is there


def test_the_time_beside_the_cell_counts(rank, monkeypatch):
    write = BlobFolder.write

    def busy(*args: Any, **options: Any) -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        write(*args, **options)

    monkeypatch.setattr(BlobFolder, "write", busy)
    with rank.snapshots.finished():
        rank.come_to_boundary(1)
    assert rank.emitter.of(SnapshotTaken)[0].seconds >= 0.05


def packed_of(buffers, device="cpu"):
    return Packed(b"", [Leaf("storage", "uint8", (len(buffer),), device) for buffer in buffers], buffers)


def test_copies_of_all_sizes():
    copying = Staging()
    for sizes in ([5, 0, 64, 65], [1000, 1], [3], []):
        buffers = [memoryview(bytearray(range(7)) * (size // 7 + 1))[:size] for size in sizes]
        copies = copying.copied(packed_of(buffers))
        expected = [bytes(buffer) for buffer in buffers]
        for buffer in buffers:
            buffer[:] = bytes(len(buffer))
        assert [bytes(copy) for copy in copies] == expected


def test_what_came_from_a_gpu_is_not_copied_again():
    mine, from_gpu = memoryview(bytearray(b"mine")), memoryview(bytearray(b"from a GPU"))
    both = packed_of([mine])
    both.leaves += packed_of([from_gpu], "cuda").leaves
    both.buffers.append(from_gpu)
    first, second = Staging().copied(both)
    assert first is not mine
    assert bytes(first) == b"mine"
    assert second is from_gpu
    on_device = torch.nn.Linear(8, 8, bias=False, device="meta")
    assert bytes_of_state([on_device]) == 8 * 8 * 4
    assert bytes_of_state([on_device], to_stage=True) == 0


def test_memory_for_a_model_and_what_its_optimizer_keeps():
    model = torch.nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 100)).sum().backward()
    optimizer.step()
    weights = 100 * 100 * 4
    assert 4 * weights <= bytes_of_state([optimizer, model, "text"]) < 4 * weights + 1000  # weights, gradients, two moments
    assert bytes_of_state([model]) == 2 * weights


def test_what_a_snapshot_of_a_large_state_takes_is_told_before_and_its_memory_waits(rank, monkeypatch):
    monkeypatch.setattr(Staging, "make_ready", lambda *_: pytest.fail("long before it is needed"))
    monkeypatch.setattr(memory_ahead, "SPEED", 1e6)
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters())
    rank.namespace |= {"model": model, "optimizer": optimizer}
    rank.observer.on_optimizer_step(optimizer)
    for _ in range(3):
        rank.snapshots.at_boundary()
    (told,) = [message for message in rank.emitter.told if isinstance(message, StateSize)]
    assert told.seconds == pytest.approx(4 * 1024 * 1025 / 1e6, rel=0.01)


def test_memory_is_there_before_the_first_one(rank, monkeypatch):
    ready: list[int] = []
    monkeypatch.setattr(Staging, "make_ready", lambda _, num_bytes: ready.append(num_bytes))
    monkeypatch.setattr(memory_ahead, "SPEED", math.inf)
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters())
    rank.namespace |= {"model": model, "optimizer": optimizer}
    with rank.snapshots.finished():
        rank.snapshots.at_boundary()
        assert not ready
        rank.observer.on_optimizer_step(optimizer)
        rank.snapshots.at_boundary()
        rank.come_to_boundary(1)
    assert ready == [bytes_of_state([model])]
    assert rank.emitter.of(SnapshotTaken)[0].place


def told_at_multiples(rank):
    return [(taken.number, taken.step) for taken in rank.emitter.of(SnapshotTaken) if taken.at_multiple]


def test_multiples_of_steps_have_one_that_nobody_has_asked_for(tmp_path):
    rank = Rank(tmp_path / "snapshots", every=10)
    with rank.snapshots.finished():
        rank.walk(19)
        rank.control.take(TakeSnapshot(number=1))
        rank.walk(6)
    assert told_at_multiples(rank) == [(unasked_number(0, 2), 10), (1, 20)], "one that was asked for as well is not taken twice"


def test_a_place_where_nothing_can_be_resumed_is_passed_before_one_is_taken(tmp_path, monkeypatch):
    rank = Rank(tmp_path / "snapshots", every=10)
    with rank.snapshots.finished():
        rank.walk(9)
        with monkeypatch.context() as patch:
            patch.setattr(Alone, "in_step", True)
            rank.walk(3)
        rank.walk(10)
    assert [step for _, step in told_at_multiples(rank)] == [13, 20]


def test_what_goes_on_from_a_multiple_takes_the_next(tmp_path, monkeypatch):
    rank, later = Rank(tmp_path / "snapshots", every=10), Rank(tmp_path / "snapshots", every=10)
    monkeypatch.setattr(RankState, "put_in_place", lambda *_, **__: later.observer.load_state_dict(rank.observer.state_dict()))
    with rank.snapshots.finished():
        rank.walk(10)
    ((number, _),) = told_at_multiples(rank)
    later.snapshots.resume(number, of_rank=0, device=torch.device("cpu"))
    with later.snapshots.finished():
        later.walk(15)
    assert [step for _, step in told_at_multiples(later)] == [20]


class Meter:
    """Counts, and has something that cannot be saved."""

    def __init__(self) -> None:
        self.count, self.items = 0, (number for number in range(9))


def save(setup: dict[str, Any], cell: Callable[[dict[str, Any]], object]) -> None:
    """Save what a cell has made of a notebook's values."""
    namespace = dict(setup)
    results = CellResults(namespace, list(setup.values()))
    cell(namespace)
    results.save([], gather=lambda tensors: tensors, skip={})


def test_nothing_is_saved_where_an_object_would_begin_anew_or_lose_an_attribute():
    save({}, lambda names: names.update(alone=Meter().items))  # made again by the statement that made it
    with pytest.raises(CannotSave, match="`meter`"):
        save({}, lambda names: names.update(meter=Meter()))
    with pytest.raises(CannotSave, match="`held`"):
        save({}, lambda names: names.update(held=[Meter().items]))
    earlier = Meter()
    del earlier.items
    with pytest.raises(CannotSave, match=r"`earlier\.items`"):
        save({"earlier": earlier}, lambda names: setattr(names["earlier"], "items", Meter().items))
