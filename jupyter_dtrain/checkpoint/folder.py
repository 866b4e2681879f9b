"""Checkpoints: snapshots on disk, where they outlive engines and kernel.

A checkpoint is a folder of its own: each rank's part of a snapshot, and a signed manifest (:mod:`.manifest`) with a checksum
of every file. It is written aside and published by one rename, so a half-written one is never seen. Large buffers lie once
for all checkpoints of the run, under the hash of their bytes (:mod:`..transport.blobs`), which is their checksum too. What
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
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.snapshot.snapshotter import snapshot_blobs, snapshot_file
from ..errors import CheckpointError
from ..options import Metric
from ..system.atomic_files import UNFINISHED, alone_in, folder_made_whole, write_whole
from ..system.resources import check_disk
from ..transport.blob_store import BlobFolder, bytes_of
from .manifest import check_signature, checksum_of, read_manifest, write_manifest
from .metadata import Checkpoint, Measured, best_of
from .snapshot_index import Whole

TASK = "task"
MANIFEST = "manifest.json"
PINNED = "pinned"
FILE_LOG = "files"


class CheckpointFolder:
    """The checkpoints of one run.

    Parameters
    ----------
    run_folder : Path
        The run's folder, which is there.
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / "checkpoints"
        self._blobs = run_folder / "blobs"

    def free(self) -> int:
        """Return the free bytes of the disk."""
        return shutil.disk_usage(self._run_folder).free

    # -- writing -----------------------------------------------------------------------------------------------------

    def write_task(self, data: bytes, blobs: BlobFolder, keys: Sequence[str]) -> None:
        """Keep what the run began with: `data`, and the buffers `keys` from `blobs`."""
        self._check_room([*map(bytes_of, keys), len(data)])
        with alone_in(self._run_folder):
            write_manifest(self._run_folder / TASK, {"blobs": self._copy_blobs(blobs, keys), "data": checksum_of(data)})
            write_whole(self._run_folder / f"{TASK}.pickle", data, durable=True)

    def write(
        self,
        parts: Sequence[Path],
        blobs: BlobFolder,
        keys: Iterable[str],
        *,
        step: int,
        place: str,
        pinned: bool = False,
        measured: Measured | None = None,
    ) -> Checkpoint:
        """Write a checkpoint of `parts`, one file for each rank, that refer to the buffers `keys` in `blobs`.

        Raises
        ------
        CheckpointError
            There is no room, or the folder cannot be written. What was there is as it was.
        """
        keys = sorted(set(keys))
        try:
            with alone_in(self._run_folder):
                missing = BlobFolder(self._blobs).missing(keys)
                self._check_room([*map(bytes_of, missing), *(part.stat().st_size for part in parts)])
                sums = self._copy_blobs(blobs, keys)
                self._folder.mkdir(mode=0o700, exist_ok=True)
                target = self._at(step)  # it may be there, of a generation before
                with folder_made_whole(target) as aside:
                    found = self._write_parts(aside, parts, sums, step=step, place=place, measured=measured)
                    if pinned or (target / PINNED).exists():
                        (aside / PINNED).touch()
        except OSError as error:
            raise CheckpointError(f"A checkpoint cannot be written to {self._folder}: {error}.") from error
        return self._checkpoint(target, found)

    def _at(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def _write_parts(
        self, folder: Path, parts: Sequence[Path], blobs: Mapping[str, str], *, step: int, place: str, measured: Measured | None
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"run": self._run_folder.name, "step": step, "place": place, "time": time.time(), "blobs": blobs}
        content.update(parts=[], num_bytes=sum(map(bytes_of, blobs)))
        for rank, part in enumerate(parts):
            data = part.read_bytes()
            write_whole(folder / str(rank), data, durable=True)
            content["parts"].append(checksum_of(data))
            content["num_bytes"] += len(data)
        if measured is not None:
            content["measured"] = {"name": measured.metric.name, "mode": measured.metric.mode, "value": measured.value}
        return write_manifest(folder / MANIFEST, content)

    def _copy_blobs(self, blobs: BlobFolder, keys: Sequence[str]) -> dict[str, str]:
        """Let the buffers `keys` be here too, and return their checksums."""
        own = BlobFolder(self._blobs)
        known: dict[str, str] = {}
        for manifest in (self._task_manifest(), *map(_manifest_if_any, self._folders())):
            with contextlib.suppress(CheckpointError):  # what others have changed is not vouched for
                check_signature(manifest, self._run_folder.name)
                known.update(manifest.get("blobs", {}))
        for key in own.missing(keys):
            own.write(key, blobs.open(key), durable=True)
        return {key: known.get(key) or checksum_of(blobs.open(key)) for key in keys}

    def _check_room(self, sizes: Iterable[int]) -> None:
        check_disk(self._run_folder, sum(sizes), what="a checkpoint")

    def keep(self, number: int) -> None:
        """Remove all but the newest `number` checkpoints, the best and those that are pinned, and what no other needs."""
        checkpoints, best = self.newest_first(), self.best()
        others = [checkpoint for checkpoint in checkpoints if not checkpoint.pinned]
        kept = [checkpoint for checkpoint in checkpoints if checkpoint.pinned or checkpoint == best or checkpoint in others[:number]]
        if not kept:
            self.remove()
            return
        for checkpoint in checkpoints:
            if checkpoint not in kept:
                shutil.rmtree(checkpoint.folder, ignore_errors=True)
        with alone_in(self._run_folder):
            self._trim()

    def pin(self, step: int, pinned: bool) -> None:
        """Let the checkpoint of `step` stay until it is deleted, or no longer."""
        mark = self.at(step).folder / PINNED
        if pinned:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def delete(self, step: int) -> None:
        """Delete the checkpoint of `step`. What it alone needs goes too, with the next one if one is being written."""
        shutil.rmtree(self.at(step).folder)
        with alone_in(self._run_folder, wait=False) as alone:
            if alone:
                self._trim()

    def _trim(self) -> None:
        """Remove the buffers that nothing needs, and what a kernel that was killed has left half-written. Nobody writes meanwhile."""
        for folder in (self._run_folder, self._folder, self._blobs):
            for left in folder.glob(f"{UNFINISHED}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        used = set(self._task_manifest().get("blobs", ()))
        for folder in self._folders():
            used.update(_manifest_if_any(folder).get("blobs", ()))
        if self._blobs.is_dir():
            BlobFolder(self._blobs).trim(keep=used, limit=0)

    # -- reading -----------------------------------------------------------------------------------------------------

    def newest_first(self) -> list[Checkpoint]:
        """Return the checkpoints that can be read, the newest first."""
        found = []
        for folder in self._folders():
            with contextlib.suppress(CheckpointError):
                found.append(self._checkpoint(folder, _manifest_of(folder)))
        return found

    def best(self) -> Checkpoint | None:
        """Return the best checkpoint by the metric that the run has followed, if there is one."""
        return best_of(self.newest_first())

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of `step`; a `CheckpointError`: there is none."""
        folder = self._at(step)
        if not folder.is_dir():
            there = ", ".join(str(checkpoint.step) for checkpoint in self.newest_first())
            raise CheckpointError(f"{self._run_folder.name} has no checkpoint of step {step}; " + (f"of {there}." if there else "of none."))
        return self._checkpoint(folder, _manifest_of(folder))

    def intact(self, step: int, *, trusted: bool = False) -> Checkpoint:
        """Return the checkpoint of `step`, whose files are all as this user has written them.

        Raises
        ------
        CheckpointError
            There is none, it is damaged, or somebody else has written it and it is not `trusted`.
        """
        found = self.at(step)
        self._verify(found.folder, _manifest_of(found.folder), trusted=trusted)
        return found

    def newest_intact(self, *, trusted: bool = False) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that is :meth:`intact`, and what is wrong with newer ones."""
        complaints: list[str] = []
        for folder in self._folders():
            try:
                manifest = _manifest_of(folder)
                self._verify(folder, manifest, trusted=trusted)
                return self._checkpoint(folder, manifest), complaints
            except CheckpointError as error:
                complaints.append(str(error))
        return None, complaints

    def _folders(self) -> list[Path]:
        """Return the folders of checkpoints, the newest first."""
        steps = {int(match[1]): folder for folder in self._folder.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", folder.name))}
        return [steps[step] for step in sorted(steps, reverse=True)]

    def read_task(self, blobs: BlobFolder, *, trusted: bool = False) -> bytes:
        """Return what the run began with, its buffers copied to `blobs`.

        Raises
        ------
        CheckpointError
            It is not there, has been changed, or somebody else has written it and it is not `trusted`.
        """
        manifest = self._task_manifest()
        try:
            data = (self._run_folder / f"{TASK}.pickle").read_bytes()
        except OSError:
            manifest = {}
        if not manifest:
            raise CheckpointError(f"{self._run_folder.name} has no checkpoint: run its cell again.")
        if not trusted:
            self.check_origin()
        if checksum_of(data) != manifest["data"]:
            raise CheckpointError(f"What {self._run_folder.name} began with has been changed on disk: run its cell again.")
        own = BlobFolder(self._blobs)
        for key, checksum in manifest["blobs"].items():
            blobs.write(key, self._intact_blob(own, key, self._run_folder, checksum=checksum))
        return data

    def check_origin(self) -> None:
        """Raise a `CheckpointError` where somebody else has written what the run began with."""
        manifest = self._task_manifest()
        if manifest:
            check_signature(manifest, self._run_folder.name)

    def remove(self) -> None:
        """Remove all checkpoints and what the run began with."""
        for name in (TASK, f"{TASK}.pickle", FILE_LOG):
            (self._run_folder / name).unlink(missing_ok=True)
        for folder in (self._folder, self._blobs):
            shutil.rmtree(folder, ignore_errors=True)

    def read(self, checkpoint: Checkpoint, folder: Path, *, number: int) -> Whole:
        """Copy a checkpoint, which is intact, to where ranks look for snapshot `number`."""
        manifest = _manifest_of(checkpoint.folder)
        own, blobs = BlobFolder(self._blobs), BlobFolder(snapshot_blobs(folder, number))
        for key in manifest["blobs"]:
            blobs.write(key, own.open(key))
        for rank in range(checkpoint.world_size):
            shutil.copyfile(checkpoint.folder / str(rank), snapshot_file(folder, number, rank))
        return Whole(number, checkpoint.world_size, checkpoint.step, checkpoint.place, frozenset(manifest["blobs"]))

    def _verify(self, folder: Path, manifest: dict[str, Any], *, trusted: bool) -> None:
        if not trusted:
            check_signature(manifest, self._run_folder.name)
        for rank, checksum in enumerate(manifest["parts"]):
            try:
                intact = checksum_of((folder / str(rank)).read_bytes()) == checksum
            except OSError:
                intact = False
            if not intact:
                raise CheckpointError(f"Checkpoint {folder.name} is damaged: the part of rank {rank} is not what was written.")
        own = BlobFolder(self._blobs)
        for key, checksum in manifest["blobs"].items():
            self._intact_blob(own, key, folder, checksum=checksum)

    @staticmethod
    def _intact_blob(blobs: BlobFolder, key: str, what: Path, *, checksum: str) -> memoryview:
        try:
            buffer = blobs.open(key)
        except OSError:
            buffer = None
        if buffer is None or checksum_of(buffer) != checksum:
            raise CheckpointError(f"Checkpoint {what.name} is damaged: some of its numbers are not what was written.")
        return buffer

    def _task_manifest(self) -> dict[str, Any]:
        with contextlib.suppress(CheckpointError):
            return read_manifest(self._run_folder / TASK, f"What {self._run_folder.name} began with")
        return {}

    def _checkpoint(self, folder: Path, manifest: dict[str, Any]) -> Checkpoint:
        return Checkpoint(
            folder=folder,
            step=manifest["step"],
            world_size=len(manifest["parts"]),
            place=manifest["place"],
            time=manifest["time"],
            num_bytes=manifest["num_bytes"],
            pinned=(folder / PINNED).exists(),
            measured=Measured(Metric(found["name"], found["mode"]), found["value"]) if (found := manifest.get("measured")) else None,
        )


def _manifest_of(folder: Path) -> dict[str, Any]:
    return read_manifest(folder / MANIFEST, f"Checkpoint {folder.name}")


def _manifest_if_any(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(CheckpointError):
        return _manifest_of(folder)
    return {}
