"""Checkpoints: snapshots on disk, which outlive engines and kernel.

A checkpoint is a folder with each rank's part of a snapshot and a signed manifest (:mod:`.manifest`) with checksums of all files. It is
written aside and published by one rename, so no reader sees a partial one. Large buffers are shared by all checkpoints of the run, under
the hash of their bytes (:mod:`..transport.blob_store`). The task that the run began with lies beside them, so a new kernel needs nothing
else to resume.

::

    dtrain-runs/<run>/
        blobs/<hash>
        task                      manifest of the ranks' task
        task.pickle               the task
        files                     log of what rank 0 has done to files
        checkpoints/
            step-000120/
                manifest.json
                0, 1, …           one file for each rank
                pinned            exists if the user wants to keep it
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..system.atomic_files import UNFINISHED, alone_in, folder_made_whole, write_whole
from ..system.confined import (
    make_folder_below,
    mark_below,
    names_below,
    read_below,
    remove_below,
)
from ..system.resources import check_disk
from ..transport.base import BlobStore
from ..transport.blob_store import bytes_of
from .manifest import LARGEST, check_signature, checksum_of, write_manifest
from .metadata import Checkpoint, Measured
from .reader import BLOBS, CHECKPOINTS, MANIFEST, PINNED, TASK, CheckpointReader

FILE_LOG = "files"


class CheckpointFolder(CheckpointReader):
    """Read and write the checkpoints of one run.

    Parameters
    ----------
    run_folder : Path
        The run's folder, which must exist.
    trusting : str, optional
        Advice on how to load untrusted checkpoints, for the error that refuses them.
    """

    def free(self) -> int:
        """Return the free bytes of the disk."""
        return shutil.disk_usage(self._runs).free

    def write_task(self, data: bytes, blobs: BlobStore, keys: Sequence[str]) -> None:
        """Write what the run began with: the pickled task `data`, and the buffers `keys` from `blobs`."""
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
        """Write a checkpoint of `parts`, one per rank, each changed by `change`; the buffers `keys` are in `blobs`.

        Raises
        ------
        CheckpointError
            There is no room, or the folder cannot be written. Existing checkpoints are unchanged.
        """
        keys = sorted(set(keys))
        try:
            with alone_in(self._run_folder):
                missing = self._blobs.missing(keys)
                data = [change(part) for part in parts]
                self._check_room([*map(bytes_of, missing), *map(len, data)])
                sums = self._copy_blobs(blobs, keys)
                make_folder_below(self._runs, self._run_id, CHECKPOINTS)
                target = self._step_folder(step)  # it may exist, written by an earlier generation
                with folder_made_whole(target) as aside:
                    found = self._write_parts(aside, data, sums, step=step, place=place, measured=measured)
                    if pinned or self._is_pinned(target):
                        mark_below(aside, PINNED)
        except OSError as error:
            raise CheckpointError(f"A checkpoint cannot be written to {self._folder}: {error}.") from error
        return self._checkpoint(target, found)

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
        """Copy the buffers `keys` into the run's folder, and return their checksums."""
        known: dict[str, str] = {}
        readers: list[Callable[[], dict[str, Any]]] = [self._task_manifest]
        readers += [partial(self._manifest_of, folder) for folder in self._folders()]
        for read in readers:
            with contextlib.suppress(CheckpointError):  # ignore checksums of manifests that others have changed
                manifest = read()
                check_signature(manifest, self._run_id)
                known.update(manifest["blobs"])
        for key in self._blobs.missing(keys):
            self._blobs.write(key, blobs.open(key))
        return {key: known.get(key) or checksum_of(blobs.open(key)) for key in keys}

    def _check_room(self, sizes: Iterable[int]) -> None:
        check_disk(self._run_folder, sum(sizes), what="a checkpoint")

    def prune(self, number: int) -> None:
        """Remove all checkpoints except the newest `number`, the best, and pinned ones; and buffers that none of these needs."""
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
        """Pin the checkpoint of `step`, so that it stays until it is deleted, or unpin it."""
        mark = (*self._parts_of(self.at(step).folder), PINNED)
        if pinned:
            mark_below(self._runs, *mark)
        else:
            remove_below(self._runs, *mark)

    def delete(self, step: int) -> None:
        """Delete the checkpoint of `step`, and buffers that no other needs: now, or after the checkpoint that is being written."""
        self._check_there(step)
        try:
            self._remove(self._step_folder(step))
        except OSError as error:
            raise CheckpointError(f"The checkpoint of step {step} cannot be deleted: {error}.") from error
        with alone_in(self._run_folder, wait=False) as alone:
            if alone:
                self._trim()

    def _trim(self) -> None:
        """Remove unused buffers, and unfinished files of a killed kernel. The caller holds the lock, so nobody writes meanwhile."""
        for parts in ((self._run_id,), (self._run_id, CHECKPOINTS), (self._run_id, BLOBS)):
            for name in names_below(self._runs, *parts):
                if name.startswith(UNFINISHED):
                    remove_below(self._runs, *parts, name)
        manifests = [(self._run_id, TASK), *((*self._parts_of(folder), MANIFEST) for folder in self._folders())]
        self._blobs.trim({key for manifest in manifests for key in self._named_in(*manifest)})

    def _named_in(self, *parts: str) -> list[str]:
        """Return the buffers named in a manifest of any version and writer, which must not be removed."""
        try:
            found = json.loads(read_below(self._runs, *parts, limit=LARGEST)).get("blobs", ())
        except (OSError, ValueError, AttributeError, RecursionError):
            return []
        return [key for key in found if isinstance(key, str)] if isinstance(found, dict | list) else []

    def remove(self) -> None:
        """Remove all checkpoints and what the run began with, as far as possible; then raise the last `OSError`, if any."""
        failed: OSError | None = None
        for name in (TASK, f"{TASK}.pickle", FILE_LOG, CHECKPOINTS, BLOBS):
            try:
                remove_below(self._runs, self._run_id, name)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def _remove(self, folder: Path) -> None:
        remove_below(self._runs, *self._parts_of(folder))
