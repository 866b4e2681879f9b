"""Snapshots on their way to disk: those that are due, on a thread of their own, and never a large part of the disk unasked."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from datetime import timedelta
from types import SimpleNamespace

import pytest

from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.checkpoint.metadata import Measured
from jupyter_dtrain.checkpoint.snapshot_folder import SnapshotFolder
from jupyter_dtrain.checkpoint.snapshot_index import CompleteSnapshot, SnapshotKeeper
from jupyter_dtrain.checkpoint.writer import FIRST, CheckpointWriter
from jupyter_dtrain.engine.snapshot.snapshot_files import snapshot_blobs, snapshot_file
from jupyter_dtrain.options import Metric, RunOptions
from jupyter_dtrain.transport.blob_store import BlobFolder
from tests.fakes import Clock

Usage = namedtuple("Usage", "total used free")
Parcel = namedtuple("Parcel", "keys")
Given = namedtuple("Given", "options parcel")


class Run:
    """A run of one rank whose snapshots the test takes."""

    def __init__(self, folder, every=None, keep=2, best=None) -> None:
        self.memory = BlobFolder(folder / "memory")
        self.folder = folder / "run"
        self.folder.mkdir()
        self.keeper = SnapshotKeeper(SnapshotFolder(folder / "snapshots"), 1, keep=keep)
        self.keeper.store.address.mkdir()
        self.said: list[str] = []
        data = self.memory.put(memoryview(b"data" * 1000))
        options = RunOptions(checkpoint_every=every, keep_checkpoints=keep, best=best, keep_secrets=True)  # parts of a test are no pickles
        task = Given(options, Parcel([data]))
        self.checkpoints = CheckpointFolder(self.folder)
        self.told: list[int] = []
        self.writer = CheckpointWriter(
            self.checkpoints,
            task,  # type: ignore[arg-type]
            say=self.said.append,
            on_written=lambda checkpoint: self.told.append(checkpoint.step),
        )

    def snapshot(self, number: int, step: int, metric: float | None = None, at_multiple: bool = False) -> None:
        key = BlobFolder(snapshot_blobs(self.keeper.store.address, number)).put(memoryview(b"weights %d" % step))
        snapshot_file(self.keeper.store.address, number, 0).write_bytes(b"state")
        self.keeper.newest = CompleteSnapshot(number, 1, step, "line 3", frozenset([key]), metric)
        if metric is not None:
            self.keeper.best = self.keeper.newest
        if at_multiple:
            self.keeper.waiting.append(self.keeper.newest)

    def offer(self) -> list[int]:
        """Offer the snapshot, wait until it is written if it is, and return the steps on disk."""
        self.writer.offer(self.keeper, self.memory.path)
        if self.writer._thread is not None:
            self.writer._thread.join(30)
        return [found.step for found in self.checkpoints.newest_first()]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(1000.0)
    monkeypatch.setattr("jupyter_dtrain.checkpoint.writer.time", SimpleNamespace(monotonic=clock))
    return clock


def test_by_default_from_some_training_on_and_seldom(tmp_path, clock):
    run = Run(tmp_path)
    run.snapshot(1, 10)
    assert run.offer() == [], "nothing is trained yet"
    run.keeper.training_since = clock.now
    clock.now += FIRST.total_seconds() - 1
    assert (run.offer(), run.told) == ([], [])
    clock.now += 2
    assert (run.offer(), run.told) == ([10], [10])
    run.snapshot(2, 20)
    clock.now += 1
    assert run.offer() == [10]
    clock.now += FIRST.total_seconds()
    assert run.offer() == [20, 10]


def test_every_so_many_steps(tmp_path):
    run = Run(tmp_path, every=50)
    for number, step in enumerate((30, 50, 70, 100, 150), 1):
        run.snapshot(number, step, at_multiple=step % 50 == 0)
        run.offer()
    assert [found.step for found in run.checkpoints.newest_first()] == [150, 100]


@pytest.mark.parametrize("through", [True, False])
def test_those_that_wait_for_the_disk_are_written_at_the_end(tmp_path, through):
    run = Run(tmp_path, every=50)
    for number, step in enumerate((50, 100, 130), 1):
        run.snapshot(number, step, at_multiple=step < 130)
    run.writer.finish(run.keeper, run.memory.path, through=through)
    assert run.told == [50, 100]
    assert run.keeper.waiting == []


@pytest.mark.parametrize(("every", "through", "left"), [(None, True, []), (None, False, [10]), (timedelta(seconds=1), True, [10])])
def test_what_is_left_at_the_end(tmp_path, clock, every, through, left):
    run = Run(tmp_path, every=every)
    run.keeper.training_since = clock.now
    clock.now += 60
    run.snapshot(1, 10)
    assert run.offer() == [10]
    run.writer.finish(run.keeper, run.memory.path, through=through)
    assert [found.step for found in run.checkpoints.newest_first()] == left
    assert bool(list(run.folder.iterdir())) == bool(left)


@pytest.mark.parametrize(("every", "written"), [(None, []), (timedelta(seconds=1), [10])])
def test_a_large_part_of_the_disk_is_taken_only_when_asked(tmp_path, clock, monkeypatch, every, written):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10_000, 0, 8_000))
    run = Run(tmp_path, every=every)
    run.keeper.training_since = clock.now
    clock.now += 60
    run.snapshot(1, 10)
    assert run.offer() == written
    assert [("--checkpoint-every" in text, "run continues" in text) for text in run.said] == ([] if written else [(True, True)])
    run.snapshot(2, 20)
    clock.now += 60
    run.offer()
    assert len(run.said) == (0 if written else 1), "said once"


def test_the_snapshot_that_is_being_written_stays_until_it_is(tmp_path, clock):
    run = Run(tmp_path)
    run.keeper.training_since = clock.now
    clock.now += 60
    run.snapshot(1, 10)
    run.writer.offer(run.keeper, run.memory.path)
    assert run.keeper.held is not None
    run.writer.finish(run.keeper, run.memory.path, through=False)
    assert run.keeper.held is None


def test_one_that_is_wanted_is_written_at_once_and_stays(tmp_path, clock):
    run = Run(tmp_path, keep=1)
    run.snapshot(1, 10)
    run.writer.want(run.keeper)
    assert run.offer() == [], "one that is newer"
    run.snapshot(2, 20)
    assert run.offer() == [20]
    run.writer.finish(run.keeper, run.memory.path, through=True)
    assert [(found.step, found.pinned) for found in run.checkpoints.newest_first()] == [(20, True)]
    assert run.writer.news() == ["A checkpoint of step 20 is on disk (15 B). It stays until you delete it."]
    assert run.writer.news() == []


def test_a_run_that_ends_before_one_that_is_wanted_says_so(tmp_path, clock):
    run = Run(tmp_path)
    run.writer.want(run.keeper)
    run.writer.finish(run.keeper, run.memory.path, through=True)
    assert run.writer.news() == ["No checkpoint was written: the cell reached no further point from which it could resume."]


def test_one_that_is_wanted_and_cannot_be_written_does_not_cost_the_others(tmp_path, clock, monkeypatch):
    run = Run(tmp_path, every=1)
    run.writer.want(run.keeper)
    run.snapshot(1, 10)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Usage(100, 100, 0))
        assert run.offer() == []
    assert "There is no room for a checkpoint" in run.writer.news()[0]
    run.snapshot(2, 20, at_multiple=True)
    assert run.offer() == [20]
    assert run.said == []


@pytest.mark.parametrize("every", [10, timedelta(seconds=60)])
def test_a_disk_that_has_room_again_gets_the_next(tmp_path, clock, monkeypatch, every):
    run = Run(tmp_path, every=every)
    run.keeper.training_since = clock.now
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Usage(100, 100, 0))
        for number, step in enumerate([10, 20], 1):
            clock.now += 61
            run.snapshot(number, step, at_multiple=every == 10)
            assert run.offer() == []
    assert len(run.said) == 1, "once"
    assert "There is no room for" in run.said[0]
    clock.now += 61
    run.snapshot(3, 30, at_multiple=every == 10)
    assert run.offer() == [30]
    assert run.said[1:] == ["Checkpoints are written again, the first of step 30."]
    run.snapshot(4, 40, at_multiple=every == 10)
    clock.now += 61
    assert run.offer() == [40, 30]
    assert len(run.said) == 2


def test_a_folder_where_nothing_can_be_removed_costs_no_result(tmp_path, clock, monkeypatch):
    run = Run(tmp_path)
    run.keeper.training_since = clock.now
    clock.now += 60
    run.snapshot(1, 10)
    assert run.offer() == [10]

    def refuse(*_args, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "unlink", refuse)
    run.writer.finish(run.keeper, run.memory.path, through=True)
    (said,) = run.writer.news()
    assert "could not be deleted: [Errno 30] Read-only file system" in said


def test_the_best_stays_besides_the_last(tmp_path):
    run = Run(tmp_path, every=10, keep=1, best=Metric("val_loss"))
    for number, (step, loss) in enumerate([(10, 0.5), (17, 0.2), (20, None), (30, None)], 1):
        run.snapshot(number, step, loss, at_multiple=step % 10 == 0)
        while run.offer() and run.keeper.waiting:
            pass
    found = run.checkpoints.newest_first()
    assert [checkpoint.step for checkpoint in found] == [30, 17]
    assert (run.checkpoints.best(), found[1].measured) == (found[1], Measured(Metric("val_loss"), 0.2))


def test_the_best_of_a_step_is_that_of_its_multiple_too_and_of_one_that_is_wanted(tmp_path):
    best = Metric("accuracy", "max")
    run = Run(tmp_path, every=10, best=best)
    run.snapshot(1, 10, 0.5)
    assert run.offer() == [10]
    run.snapshot(2, 10, at_multiple=True)
    assert run.offer() == [10]
    assert [(found.measured, found.pinned) for found in run.checkpoints.newest_first()] == [(Measured(best, 0.5), False)]
    run.writer.want(run.keeper)
    run.snapshot(3, 10)
    assert run.offer() == [10]
    assert [(found.measured, found.pinned) for found in run.checkpoints.newest_first()] == [(Measured(best, 0.5), True)]
    run.checkpoints.delete(10)
    run.snapshot(4, 10, at_multiple=True)
    assert run.offer() == [10]
    assert [found.measured for found in run.checkpoints.newest_first()] == [None]


def test_the_best_that_comes_last_is_written_at_the_end_and_all_that_stays(tmp_path):
    run = Run(tmp_path, best=Metric("accuracy", "max"))
    run.snapshot(1, 10, 0.5)
    assert run.offer() == [10]
    run.snapshot(2, 20, 0.6)
    run.writer.finish(run.keeper, run.memory.path, through=True)
    assert [(found.step, found.measured) for found in run.checkpoints.newest_first()] == [(20, Measured(Metric("accuracy", "max"), 0.6))]
    assert run.writer.news() == []


def test_one_that_is_wanted_is_not_the_best_of_before(tmp_path):
    """The best was still to be written when somebody wanted one."""
    run = Run(tmp_path, best=Metric("accuracy", "max"))
    run.snapshot(1, 10, metric=0.9)
    run.snapshot(2, 20)
    run.writer.want(run.keeper)
    run.snapshot(3, 30)
    assert run.offer() == [10]
    assert run.offer() == [30, 10]
    assert [(found.step, found.pinned) for found in run.checkpoints.newest_first()] == [(30, True), (10, False)]


def test_a_metric_that_never_came_is_said(tmp_path):
    run = Run(tmp_path, best=Metric("val_loss"))
    run.snapshot(1, 10)
    run.offer()
    run.writer.finish(run.keeper, run.memory.path, through=True)
    assert ["'val_loss'" in text for text in run.writer.news()] == [True]
