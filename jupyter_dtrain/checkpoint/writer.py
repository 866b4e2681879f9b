"""Write snapshots to disk as checkpoints on a separate thread: neither the engines nor the cell's output wait for it."""

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
"""Training time before the first checkpoint."""
LAST = timedelta(minutes=5)
"""Time to wait for parts of the last snapshot from other hosts: the user may have asked for it."""
PART = 0.25
"""Largest part of the free disk for checkpoints that the user has not asked for."""
SHARE = 0.05
"""Largest part of the time that the disk is busy with checkpoints, unless the user sets the interval."""


class CheckpointWriter:
    """Write some of the snapshots of a run to disk.

    Parameters
    ----------
    folder : CheckpointFolder
    task : Task
        The ranks' task; written with the first checkpoint.
    say : callable
        Shows a line when a checkpoint cannot be written, and when writing works again.
    on_written : callable
        Called with each checkpoint, on the writing thread.
    expects_best : bool
        Whether to report that a run with a metric has no best checkpoint.
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
        self._step_of_best: int | None = None  # of the best checkpoint that was written last
        self._next: float | None = None
        self._refused = False  # whether the last due checkpoint could not be written
        self._wrote_task = False
        self._wanted = False
        self._wanted_after: CompleteSnapshot | None = None
        self._news: list[str] = []

    def want(self, keeper: SnapshotKeeper) -> None:
        """Write the next snapshot in any case, and pin it. Any thread may call this."""
        self._wanted_after, self._wanted = keeper.newest, True
        keeper.hasten()

    @property
    def folder(self) -> CheckpointFolder:
        """Where checkpoints are written."""
        return self._folder

    def say_later(self, text: str) -> None:
        """Add a line to the result of :meth:`news`. Any thread may call this."""
        self._news.append(text)

    def news(self) -> list[str]:
        """Return new messages for the user since the last call."""
        news, self._news = self._news, []
        return news

    def offer(self, keeper: SnapshotKeeper, blob_dir: Path) -> None:
        """Start to write the newest snapshot if one is due. `blob_dir` holds the task's buffers."""
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
        # A due snapshot may be older than the user's request. It is written for itself, and the newest one after it.
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
        """Wait until everything is written. `through`: the run has ended, so only checkpoints that the user has asked for are kept.

        Waiting snapshots are written as well; `blob_dir` holds the task's buffers. Disk errors are not raised, as the results must still be
        returned.
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
            except (CheckpointError, OSError) as error:  # the folder was removed or is read-only now
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
        """Raise a `CheckpointError` if unrequested checkpoints would take a large part of the disk."""
        needed = sum(map(bytes_of, {*self._task.parcel.keys, *snapshot.keys}))
        if self._every is None and self._best is None and needed > PART * self._folder.free():
            raise CheckpointError(
                f"The cell's values ({size_text(needed)}) are not kept, as they would take a large part of the disk: "
                "if the kernel dies, this run is lost. `--checkpoint-every 10min` writes them anyway."
            )

    def _is_time(self, keeper: SnapshotKeeper) -> bool:
        if isinstance(self._every, int):  # the ranks take those at multiples of steps
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
            self._news.append(
                f"A checkpoint of step {written.step} is on disk ({size_text(written.num_bytes)}). It stays until you delete it."
            )
        if self._refused:
            self._refused = False
            self._say(f"Checkpoints are written again, the first of step {written.step}.")
        self._plan_next(began)
        self._on_written(written)

    def _written(self, keeper: SnapshotKeeper, snapshot: CompleteSnapshot, *, pinned: bool) -> Checkpoint:
        """Write the snapshot as a checkpoint; if the best checkpoint has the same step, return that, as there is one per step."""
        if snapshot.metric is None and snapshot.step == self._step_of_best:
            with suppress(CheckpointError):  # it was removed, as there is a better one
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
        """Set when the next checkpoint is due; writing the last one began at `began`."""
        took = timedelta(seconds=time.monotonic() - began)
        if not isinstance(self._every, int):
            self._next = time.monotonic() + (self._every or max(FIRST, took / SHARE)).total_seconds()
