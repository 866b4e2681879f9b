"""Checkpoints: snapshots on disk, where they outlive engines and kernel.

A checkpoint is a folder of its own: each rank's part of a snapshot, and a signed manifest (:mod:`.manifest`) with a checksum
of every file. It is written aside and published by one rename, so a half-written one is never seen. Large buffers lie once
for all checkpoints of the run, under the hash of their bytes (:mod:`..transport.blob_store`), which is their checksum too. What
the run began with lies beside them: a new kernel needs nothing else to go on.

::

    dtrain-runs/<run>/
        blobs/<hash>
        task                      what the ranks were given
        files                     what rank 0 has done to files
        checkpoints/
            step-000120/
                manifest.json
                0, 1, …           one file for each rank
                pinned            there if the user wants to keep it
"""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from ..engine.task import Task
from ..errors import CheckpointError
from ..options import Metric
from ..system.atomic_files import UNFINISHED, alone_in, folder_made_whole, write_whole
from ..system.confined import (
    is_file_below,
    is_folder_below,
    kind_below,
    make_folder_below,
    mark_below,
    names_below,
    read_below,
    remove_below,
)
from ..system.resources import check_disk
from ..transport.base import BlobStore, SnapshotStore
from ..transport.blob_store import bytes_of
from .disk_blobs import DiskBlobs
from .manifest import LARGEST, check_signature, check_versions, checksum_of, other_versions, read_manifest, unpickling, write_manifest
from .metadata import Checkpoint, Intact, Measured, best_of
from .snapshot_index import CompleteSnapshot

CHECKPOINTS, BLOBS = "checkpoints", "blobs"
TASK = "task"
MANIFEST = "manifest.json"
PINNED = "pinned"
FILE_LOG = "files"
_STEP = re.compile(r"step-([0-9]{6,15})")


class CheckpointFolder:
    """The checkpoints of one run.

    Parameters
    ----------
    run_folder : Path
        The run's folder, which is there.
    trusting : str, optional
        How what somebody else has written is read all the same, for the error that refuses it.
    """

    def __init__(self, run_folder: Path, *, trusting: str | None = None) -> None:
        self._trusting = trusting
        self._run_folder = run_folder
        self._folder = run_folder / CHECKPOINTS
        self._runs, self._run_id = run_folder.parent, run_folder.name  # whatever else is on the way may be a link
        self._blobs = DiskBlobs(self._runs, self._run_id, BLOBS)

    def free(self) -> int:
        """Return the free bytes of the disk."""
        return shutil.disk_usage(self._runs).free

    # -- writing -----------------------------------------------------------------------------------------------------

    def write_task(self, data: bytes, blobs: BlobStore, keys: Sequence[str]) -> None:
        """Keep what the run began with: `data`, and the buffers `keys` from `blobs`."""
        self._check_room([*map(bytes_of, keys), len(data)])
        with alone_in(self._run_folder):
            content = {"blobs": self._copy_blobs(blobs, keys), "data": checksum_of(data)}
            write_manifest(self._run_folder / TASK, "task", content, run_id=self._run_id)
            write_whole(self._run_folder / f"{TASK}.pickle", data, durable=True)

    def write(
        self,
        parts: Sequence[bytes],
        blobs: BlobStore,
        keys: Iterable[str],
        *,
        step: int,
        place: str,
        pinned: bool = False,
        measured: Measured | None = None,
        change: Callable[[bytes], bytes] = lambda part: part,
    ) -> Checkpoint:
        """Write a checkpoint of `parts`, one for each rank, as `change` makes them; the buffers `keys` are in `blobs`.

        Raises
        ------
        CheckpointError
            There is no room, or the folder cannot be written. What was there is as it was.
        """
        keys = sorted(set(keys))
        try:
            with alone_in(self._run_folder):
                missing = self._blobs.missing(keys)
                data = [change(part) for part in parts]
                self._check_room([*map(bytes_of, missing), *map(len, data)])
                sums = self._copy_blobs(blobs, keys)
                make_folder_below(self._runs, self._run_id, CHECKPOINTS)
                target = self._at(step)  # it may be there, of a generation before
                with folder_made_whole(target) as aside:
                    found = self._write_parts(aside, data, sums, step=step, place=place, measured=measured)
                    if pinned or self._is_pinned(target):
                        mark_below(aside, PINNED)
        except OSError as error:
            raise CheckpointError(f"A checkpoint cannot be written to {self._folder}: {error}.") from error
        return self._checkpoint(target, found)

    def _at(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def _write_parts(
        self, folder: Path, parts: Sequence[bytes], blobs: Mapping[str, str], *, step: int, place: str, measured: Measured | None
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"step": step, "place": place, "time": time.time(), "blobs": blobs}
        content.update(parts=[], num_bytes=sum(map(bytes_of, blobs)))
        for rank, part in enumerate(parts):
            write_whole(folder / str(rank), part, durable=True)
            content["parts"].append(checksum_of(part))
            content["num_bytes"] += len(part)
        if measured is not None:
            content["measured"] = {"name": measured.metric.name, "mode": measured.metric.mode, "value": measured.value}
        return write_manifest(folder / MANIFEST, "checkpoint", content, run_id=self._run_id)

    def _copy_blobs(self, blobs: BlobStore, keys: Sequence[str]) -> dict[str, str]:
        """Let the buffers `keys` be here too, and return their checksums."""
        known: dict[str, str] = {}
        readers: list[Callable[[], dict[str, Any]]] = [self._task_manifest]
        readers += [partial(self._manifest_of, folder) for folder in self._folders()]
        for read in readers:
            with contextlib.suppress(CheckpointError):  # what others have changed is not vouched for
                manifest = read()
                check_signature(manifest, self._run_id)
                known.update(manifest["blobs"])
        for key in self._blobs.missing(keys):
            self._blobs.write(key, blobs.open(key))
        return {key: known.get(key) or checksum_of(blobs.open(key)) for key in keys}

    def _check_room(self, sizes: Iterable[int]) -> None:
        check_disk(self._run_folder, sum(sizes), what="a checkpoint")

    def prune(self, number: int) -> None:
        """Remove all but the newest `number` checkpoints, the best and those that are pinned, and what no other needs."""
        checkpoints, best = self.newest_first(), self.best()
        others = [checkpoint for checkpoint in checkpoints if not checkpoint.pinned]
        kept = [checkpoint for checkpoint in checkpoints if checkpoint.pinned or checkpoint == best or checkpoint in others[:number]]
        if not kept:
            self.remove()
            return
        for checkpoint in checkpoints:
            if checkpoint not in kept:
                with contextlib.suppress(OSError):
                    self._remove(checkpoint.folder)
        with alone_in(self._run_folder):
            self._trim()

    def pin(self, step: int, pinned: bool) -> None:
        """Let the checkpoint of `step` stay until it is deleted, or no longer."""
        mark = (*self._parts_of(self.at(step).folder), PINNED)
        if pinned:
            mark_below(self._runs, *mark)
        else:
            remove_below(self._runs, *mark)

    def delete(self, step: int) -> None:
        """Delete the checkpoint of `step`. What it alone needs goes too, with the next one if one is being written."""
        self._check_there(step)
        try:
            self._remove(self._at(step))
        except OSError as error:
            raise CheckpointError(f"The checkpoint of step {step} cannot be deleted: {error}.") from error
        with alone_in(self._run_folder, wait=False) as alone:
            if alone:
                self._trim()

    def _trim(self) -> None:
        """Remove the buffers that nothing needs, and what a kernel that was killed has left half-written. Nobody writes meanwhile."""
        for parts in ((self._run_id,), (self._run_id, CHECKPOINTS), (self._run_id, BLOBS)):
            for name in names_below(self._runs, *parts):
                if name.startswith(UNFINISHED):
                    remove_below(self._runs, *parts, name)
        manifests = [(self._run_id, TASK), *((*self._parts_of(folder), MANIFEST) for folder in self._folders())]
        self._blobs.trim({key for manifest in manifests for key in self._named_in(*manifest)})

    def _named_in(self, *parts: str) -> list[str]:
        """Return the buffers that a manifest of any version names, whoever has written it: they are not to go."""
        try:
            found = json.loads(read_below(self._runs, *parts, limit=LARGEST)).get("blobs", ())
        except (OSError, ValueError, AttributeError, RecursionError):
            return []
        return [key for key in found if isinstance(key, str)] if isinstance(found, dict | list) else []

    # -- reading -----------------------------------------------------------------------------------------------------

    def newest_first(self) -> list[Checkpoint]:
        """Return the checkpoints that can be read, the newest first."""
        found = []
        for folder in self._folders():
            with contextlib.suppress(CheckpointError):
                found.append(self._checkpoint(folder, self._manifest_of(folder)))
        return found

    def best(self) -> Checkpoint | None:
        """Return the best checkpoint by the metric that the run has followed, if there is one."""
        return best_of(self.newest_first())

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of `step`; a `CheckpointError`: there is none."""
        self._check_there(step)
        return self._checkpoint(self._at(step), self._manifest_of(self._at(step)))

    def _check_there(self, step: int) -> None:
        if self._at(step) not in self._folders():
            there = ", ".join(str(checkpoint.step) for checkpoint in self.newest_first())
            raise CheckpointError(f"{self._run_id} has no checkpoint of step {step}; " + (f"of {there}." if there else "of none."))

    def intact(self, step: int, *, trusted: bool = False) -> Intact:
        """Return the checkpoint of `step`, whose files are all as this user has written them.

        Raises
        ------
        CheckpointError
            There is none, it is damaged, or somebody else has written it and it is not `trusted`.
        """
        self._check_there(step)
        return self._verified(self._at(step), trusted=trusted)

    def newest_intact(self, *, trusted: bool = False) -> tuple[Intact | None, list[str]]:
        """Return the newest checkpoint that is :meth:`intact`, and what is wrong with newer ones."""
        complaints: list[str] = []
        for folder in self._folders():
            try:
                return self._verified(folder, trusted=trusted), complaints
            except CheckpointError as error:
                complaints.append(str(error))
        return None, complaints

    def _folders(self) -> list[Path]:
        """Return the folders of checkpoints, the newest first."""
        steps = {int(match[1]) for name in names_below(self._runs, self._run_id, CHECKPOINTS) if (match := _STEP.fullmatch(name))}
        found = map(self._at, sorted(steps, reverse=True))
        return [folder for folder in found if is_folder_below(self._runs, *self._parts_of(folder))]

    def read_task(self, blobs: BlobStore, *, trusted: bool = False) -> Task:
        """Return what the run began with, its buffers copied to `blobs`.

        Raises
        ------
        CheckpointError
            It is not there, has been changed, or somebody else has written it and it is not `trusted`; or this Python cannot read it.
        """
        what = f"What {self._run_id} began with"
        manifest = self._origin(trusted=trusted)
        try:
            data = read_below(self._runs, self._run_id, f"{TASK}.pickle", limit=None)
        except OSError:
            raise self._no_checkpoint() from None
        if checksum_of(data) != manifest["data"]:
            raise CheckpointError(f"{what} has been changed on disk: run its cell again.")
        for key, checksum in manifest["blobs"].items():
            self._blobs.copy_to(blobs, key, checksum=checksum, what=what)
        with unpickling(manifest, what):
            task: Task = pickle.loads(data)
        return task

    def unpickling(self) -> AbstractContextManager[None]:
        """Say what is missing where what the run holds cannot be unpickled in the ``with`` block."""
        return unpickling(self._task_manifest(), f"What {self._run_id} holds")

    def other_versions(self) -> str:
        """Return with which versions the run began that are others here: see :func:`.manifest.other_versions`."""
        return other_versions(self._task_manifest())

    def _origin(self, *, trusted: bool) -> dict[str, Any]:
        if not is_file_below(self._runs, self._run_id, TASK):
            raise self._no_checkpoint()
        manifest = self._task_manifest()
        if not trusted:
            check_signature(manifest, self._run_id, advice=self._trusting)
        check_versions(manifest, f"What {self._run_id} began with")
        return manifest

    def _no_checkpoint(self) -> CheckpointError:
        return CheckpointError(f"{self._run_id} has no checkpoint: run its cell again.")

    def check_origin(self) -> None:
        """Raise a `CheckpointError` where somebody else has written what the run began with, or this version cannot read it."""
        if is_file_below(self._runs, self._run_id, TASK):
            self._origin(trusted=False)

    def remove(self) -> None:
        """Remove all checkpoints and what the run began with, as far as that can be: an `OSError` says of what it cannot."""
        failed: OSError | None = None
        for name in (TASK, f"{TASK}.pickle", FILE_LOG, CHECKPOINTS, BLOBS):
            try:
                remove_below(self._runs, self._run_id, name)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def read(
        self, intact: Intact, snapshots: SnapshotStore, *, number: int, change: Callable[[bytes], bytes] = lambda part: part
    ) -> CompleteSnapshot:
        """Copy a checkpoint to where ranks look for snapshot `number`, each part as `change` makes it.

        Raises
        ------
        CheckpointError
            Some of it is not any more what it was when it was looked at.
        """
        checkpoint, blobs = intact.checkpoint, snapshots.blobs(number)
        for key, checksum in intact.blobs.items():
            self._blobs.copy_to(blobs, key, checksum=checksum, what=f"Checkpoint {checkpoint.folder.name}")
        for rank, part in enumerate(intact.parts):
            snapshots.put_part(number, rank, change(part))
        return CompleteSnapshot(number, checkpoint.world_size, checkpoint.step, checkpoint.place, frozenset(intact.blobs))

    def _verified(self, folder: Path, *, trusted: bool) -> Intact:
        what, parts = f"Checkpoint {folder.name}", self._parts_of(folder)
        manifest = self._manifest_of(folder)
        if not trusted:
            check_signature(manifest, self._run_id, advice=self._trusting)
        check_versions(manifest, what)
        read: list[bytes] = []
        for rank, checksum in enumerate(manifest["parts"]):
            with contextlib.suppress(OSError):
                read.append(read_below(self._runs, *parts, str(rank), limit=None))
            if len(read) <= rank or checksum_of(read[rank]) != checksum:
                raise CheckpointError(f"{what} is damaged: the part of rank {rank} is not what was written.")
        for key, checksum in manifest["blobs"].items():
            self._blobs.check(key, checksum=checksum, what=what)
        return Intact(self._checkpoint(folder, manifest), read, manifest["blobs"])

    def _task_manifest(self) -> dict[str, Any]:
        return read_manifest(self._runs, self._run_id, TASK, kind="task", what=f"What {self._run_id} began with")

    def _manifest_of(self, folder: Path) -> dict[str, Any]:
        what = f"Checkpoint {folder.name}"
        manifest = read_manifest(self._runs, *self._parts_of(folder), MANIFEST, kind="checkpoint", what=what)
        if self._at(manifest["step"]) != folder:
            raise CheckpointError(f"{what} is damaged: its manifest is that of step {manifest['step']}.")
        return manifest

    def _parts_of(self, folder: Path) -> tuple[str, str, str]:
        return self._run_id, CHECKPOINTS, folder.name

    def _is_pinned(self, folder: Path) -> bool:
        return kind_below(self._runs, *self._parts_of(folder), PINNED) is not None

    def _remove(self, folder: Path) -> None:
        remove_below(self._runs, *self._parts_of(folder))

    def _checkpoint(self, folder: Path, manifest: dict[str, Any]) -> Checkpoint:
        return Checkpoint(
            folder=folder,
            step=manifest["step"],
            world_size=len(manifest["parts"]),
            place=manifest["place"],
            time=manifest["time"],
            num_bytes=manifest["num_bytes"],
            pinned=self._is_pinned(folder),
            measured=Measured(Metric(found["name"], found["mode"]), found["value"]) if (found := manifest.get("measured")) else None,
        )
