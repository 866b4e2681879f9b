"""Snapshots on their way to disk, on a thread of their own: neither the engines nor the cell's output wait for it."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ..engine.task import Task
from ..errors import CheckpointError, StoreError
from ..system.resources import size_text
from ..transport.base import BlobStore
from ..transport.blob_store import BlobFolder, bytes_of
from .folder import CheckpointFolder
from .metadata import Checkpoint, Measured
from .secrets_at_rest import part_without_secrets, without_secrets
from .snapshot_index import CompleteSnapshot, SnapshotKeeper

FIRST = timedelta(seconds=10)
"""Training that is worth a checkpoint."""
LAST = timedelta(minutes=5)
"""Time for the parts of the last snapshot to come from other hosts: it may be one that somebody has asked for."""
PART = 0.25
"""Part of the free disk that checkpoints may take which nobody has asked for."""
SHARE = 0.05
"""Part of the time in which the disk may be busy with checkpoints, unless the user says how often."""


class CheckpointWriter:
    """Writes some of the snapshots of a run to disk.

    Parameters
    ----------
    folder : CheckpointFolder
    task : Task
        What the ranks were given; goes to disk with the first.
    say : callable
        Told if one cannot be written, and when one can again.
    on_written : callable
        Told of each, on the writing thread.
    expects_best : bool
        Whether it is worth a line that a run with a metric has come to no best.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        task: Task,
        *,
        say: Callable[[str], None],
        on_written: Callable[[Checkpoint], None],
        expects_best: bool = True,
    ) -> None:
        self._folder, self._task, self._expects_best = folder, task, expects_best
        options = task.options
        self._every, self._keep, self._best = options.checkpoint_every, options.keep_checkpoints, options.best
        self._has_best = folder.best() is not None
        self._say, self._on_written = say, on_written
        self._thread: threading.Thread | None = None
        self._last: CompleteSnapshot | None = None
        self._step_of_best: int | None = None  # that was written last
        self._next: float | None = None
        self._refused = False  # the last one that was due
        self._wrote_task = False
        self._wanted = False
        self._wanted_after: CompleteSnapshot | None = None
        self._news: list[str] = []

    def want(self, keeper: SnapshotKeeper) -> None:
        """Let the next snapshot be written in any case, and kept until it is deleted. Any thread may call this."""
        self._wanted_after, self._wanted = keeper.newest, True
        keeper.hasten()

    @property
    def folder(self) -> CheckpointFolder:
        """Where they are written."""
        return self._folder

    def say_later(self, text: str) -> None:
        """Let :meth:`news` return `text`. Any thread may call this."""
        self._news.append(text)

    def news(self) -> list[str]:
        """Return what has become of those that were wanted, since the last call."""
        news, self._news = self._news, []
        return news

    def offer(self, keeper: SnapshotKeeper, blob_dir: Path) -> None:
        """Begin to write the newest snapshot if it is time. `blob_dir` has what the task refers to."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            keeper.release()
        due = keeper.best or next(iter(keeper.waiting), None)
        snapshot = due or keeper.newest
        if snapshot is None:
            return
        self._has_best |= snapshot is keeper.best
        # What is due may be from before somebody wanted one: it is written for itself, and the newest is after it.
        wanted = self._wanted and snapshot is keeper.newest and snapshot is not self._wanted_after
        if not wanted and due is None and (snapshot is self._last or not self._is_time(keeper)):
            return
        if wanted:
            self._wanted = False
        self._last = snapshot
        keeper.retain(snapshot)
        arguments = keeper, snapshot, BlobFolder(blob_dir), wanted
        self._thread = threading.Thread(target=self._write, args=arguments, name="dtrain-checkpoint", daemon=True)
        self._thread.start()

    def finish(self, keeper: SnapshotKeeper, blob_dir: Path, *, through: bool) -> None:
        """Wait until all is written. `through`: the run has ended, and only checkpoints that were asked for stay.

        What waits for the disk is written as well; `blob_dir` has what the task refers to. Nothing that the disk refuses is an error
        here: the results are still to come home.
        """
        self._wait(keeper)
        keeper.commit(LAST)
        while (keeper.best is not None or keeper.waiting) and blob_dir.exists():
            self.offer(keeper, blob_dir)
            self._wait(keeper)
        if self._wanted:
            self._news.append("No checkpoint was written: the cell reached no further point from which it could resume.")
        if through and self._every is None:
            try:
                self._folder.prune(0)
            except (CheckpointError, OSError) as error:  # somebody has taken the folder away, or the right to write there
                self._news.append(f"Old checkpoints of this run could not be deleted: {error}.")
        if through and self._best is not None and self._expects_best and not self._has_best:
            name = self._best.name
            missing = f"the cell has logged no {name!r} and has no number of that name in its outermost loop"
            self._news.append(f"No best checkpoint is kept: {missing}.")

    def _wait(self, keeper: SnapshotKeeper) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            keeper.release()

    def _check_size(self, snapshot: CompleteSnapshot) -> None:
        """Raise a `CheckpointError` where nobody has asked for checkpoints and they would take a large part of the disk."""
        needed = sum(map(bytes_of, {*self._task.parcel.keys, *snapshot.keys}))
        if self._every is None and self._best is None and needed > PART * self._folder.free():
            raise CheckpointError(
                f"The cell's values ({size_text(needed)}) are not kept on disk, of which they would take a large part: "
                "if the kernel dies, this run is lost. `--checkpoint-every 10min` writes them anyway."
            )

    def _is_time(self, keeper: SnapshotKeeper) -> bool:
        if isinstance(self._every, int):  # those are due of themselves
            return False
        if self._next is None and keeper.training_since is not None:
            self._next = keeper.training_since + (self._every or FIRST).total_seconds()
        return self._next is not None and time.monotonic() >= self._next

    def _write(self, keeper: SnapshotKeeper, snapshot: CompleteSnapshot, blobs: BlobStore, wanted: bool) -> None:
        began = time.monotonic()
        try:
            if not wanted:
                self._check_size(snapshot)
            if not self._wrote_task:
                task = self._task if self._task.options.keep_secrets else without_secrets(self._task)
                self._folder.write_task(pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL), blobs, self._task.parcel.keys)
                self._wrote_task = True
            written = self._written(keeper, snapshot, pinned=wanted)
            self._folder.prune(self._keep)
        except (CheckpointError, StoreError, OSError) as error:
            if wanted:
                self._news.append(str(error))
            else:
                if not self._refused:
                    self._refused = True
                    what = f"A checkpoint cannot be written: {error}." if isinstance(error, OSError) else error
                    self._say(f"{what} The run continues; the next checkpoint is tried when it is due.")
                self._plan_next(began)
            return
        if wanted:
            self._news.append(f"A checkpoint of step {written.step} is on disk ({size_text(written.num_bytes)}), and stays there.")
        if self._refused:
            self._refused = False
            self._say(f"Checkpoints are written again, the first of step {written.step}.")
        self._plan_next(began)
        self._on_written(written)

    def _written(self, keeper: SnapshotKeeper, snapshot: CompleteSnapshot, *, pinned: bool) -> Checkpoint:
        """Return the checkpoint of a snapshot: that of the best, if it is of the same step, as there is one of each."""
        if snapshot.metric is None and snapshot.step == self._step_of_best:
            with suppress(CheckpointError):  # it is gone, as a better one has come
                if pinned:
                    self._folder.pin(snapshot.step, True)
                return self._folder.at(snapshot.step)
        measured = Measured(self._best, snapshot.metric) if self._best is not None and snapshot.metric is not None else None
        step = snapshot.step
        written = self._folder.write(
            keeper.parts(snapshot),
            keeper.blobs(snapshot),
            snapshot.keys,
            step=step,
            place=snapshot.place,
            pinned=pinned,
            measured=measured,
            change=(lambda part: part) if self._task.options.keep_secrets else part_without_secrets,
        )
        if measured is not None:
            self._step_of_best = step
        return written

    def _plan_next(self, began: float) -> None:
        """Know when the next one is due after one that has `began` then, and is written or not."""
        took = timedelta(seconds=time.monotonic() - began)
        if not isinstance(self._every, int):
            self._next = time.monotonic() + (self._every or max(FIRST, took / SHARE)).total_seconds()
