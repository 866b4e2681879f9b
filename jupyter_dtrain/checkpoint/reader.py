"""Read checkpoints: list them, and load them after every byte was verified.

Nothing is unpickled before its checksum matches a signed manifest (:mod:`.manifest`), and the bytes that were hashed are the bytes that are
unpickled.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..engine.task import Task
from ..errors import CheckpointError
from ..options import Metric
from ..system.confined import is_file_below, is_folder_below, kind_below, names_below, read_below
from ..transport.base import BlobStore, SnapshotStore
from .disk_blobs import DiskBlobs
from .manifest import check_signature, check_versions, checksum_of, other_versions, read_manifest, unpickled, unpickling
from .metadata import Checkpoint, Intact, Measured, best_of
from .snapshot_index import CompleteSnapshot

CHECKPOINTS, BLOBS = "checkpoints", "blobs"
TASK = "task"
MANIFEST = "manifest.json"
PINNED = "pinned"
_STEP = re.compile(r"step-([0-9]{6,15})")


class CheckpointReader:
    """Read the checkpoints of one run.

    Parameters
    ----------
    run_folder : Path
        The run's folder, which must exist.
    trusting : str, optional
        Advice on how to load untrusted checkpoints, for the error that refuses them.
    """

    def __init__(self, run_folder: Path, *, trusting: str | None = None) -> None:
        self._trusting = trusting
        self._run_folder = run_folder
        self._folder = run_folder / CHECKPOINTS
        self._runs, self._run_id = run_folder.parent, run_folder.name  # anything below `_runs` may be a symbolic link
        self._blobs = DiskBlobs(self._runs, self._run_id, BLOBS)

    def newest_first(self) -> list[Checkpoint]:
        """Return the checkpoints with a readable manifest, the newest first."""
        found = []
        for folder in self._folders():
            with contextlib.suppress(CheckpointError):
                found.append(self._checkpoint(folder, self._manifest_of(folder)))
        return found

    def best(self) -> Checkpoint | None:
        """Return the best checkpoint by the run's metric, if there is one."""
        return best_of(self.newest_first())

    def at(self, step: int) -> Checkpoint:
        """Return the checkpoint of `step`; raise a `CheckpointError` if there is none."""
        self._check_there(step)
        return self._checkpoint(self._step_folder(step), self._manifest_of(self._step_folder(step)))

    def intact(self, step: int, *, trusted: bool = False) -> Intact:
        """Return the checkpoint of `step` after verifying all of its files.

        Raises
        ------
        CheckpointError
            There is none, it is damaged, or it is not signed by you and not `trusted`.
        """
        self._check_there(step)
        return self._verified(self._step_folder(step), trusted=trusted)

    def newest_intact(self, *, trusted: bool = False) -> tuple[Intact | None, list[str]]:
        """Return the newest checkpoint that is :meth:`intact`, and the errors of newer ones."""
        complaints: list[str] = []
        for folder in self._folders():
            try:
                return self._verified(folder, trusted=trusted), complaints
            except CheckpointError as error:
                complaints.append(str(error))
        return None, complaints

    def read_task(self, blobs: BlobStore, *, trusted: bool = False) -> Task:
        """Return the task that the run began with, with its buffers copied to `blobs`.

        Raises
        ------
        CheckpointError
            It is missing or changed, it is not signed by you and not `trusted`, or this Python cannot read it.
        """
        what = f"What {self._run_id} began with"
        manifest = self._origin(trusted=trusted)
        try:
            data = read_below(self._runs, self._run_id, f"{TASK}.pickle", limit=None)
        except OSError:
            raise self._no_checkpoint() from None
        task: Task = unpickled(data, manifest, what)
        for key, checksum in manifest["blobs"].items():
            self._blobs.copy_to(blobs, key, checksum=checksum, what=what)
        return task

    def read(
        self, intact: Intact, snapshots: SnapshotStore, *, number: int, change: Callable[[bytes], bytes] = lambda part: part
    ) -> CompleteSnapshot:
        """Copy a checkpoint to `snapshots` as snapshot `number`, with each part changed by `change`.

        Raises
        ------
        CheckpointError
            A buffer has changed since it was verified.
        """
        checkpoint, blobs = intact.checkpoint, snapshots.blobs(number)
        for key, checksum in intact.blobs.items():
            self._blobs.copy_to(blobs, key, checksum=checksum, what=f"Checkpoint {checkpoint.folder.name}")
        for rank, part in enumerate(intact.parts):
            snapshots.put_part(number, rank, change(part))
        return CompleteSnapshot(number, checkpoint.world_size, checkpoint.step, checkpoint.place, frozenset(intact.blobs))

    def unpickling(self) -> AbstractContextManager[None]:
        """Turn unpickling errors in the ``with`` block into a `CheckpointError` that names what is missing."""
        return unpickling(self._task_manifest(), f"What {self._run_id} holds")

    def other_versions(self) -> str:
        """Return the versions that differ between the run and this process: see :func:`.manifest.other_versions`."""
        return other_versions(self._task_manifest())

    def check_origin(self) -> None:
        """Raise a `CheckpointError` if what the run began with is not signed by you, or cannot be read by this version."""
        if is_file_below(self._runs, self._run_id, TASK):
            self._origin(trusted=False)

    def _check_there(self, step: int) -> None:
        if self._step_folder(step) not in self._folders():
            there = ", ".join(str(checkpoint.step) for checkpoint in self.newest_first())
            raise CheckpointError(f"{self._run_id} has no checkpoint of step {step}; " + (f"of {there}." if there else "of none."))

    def _folders(self) -> list[Path]:
        """Return the folders of checkpoints, the newest first."""
        steps = {int(match[1]) for name in names_below(self._runs, self._run_id, CHECKPOINTS) if (match := _STEP.fullmatch(name))}
        found = map(self._step_folder, sorted(steps, reverse=True))
        return [folder for folder in found if is_folder_below(self._runs, *self._parts_of(folder))]

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
                raise CheckpointError(f"{what} is damaged: the file of rank {rank} does not match its checksum.")
        for key, checksum in manifest["blobs"].items():
            self._blobs.check(key, checksum=checksum, what=what)
        return Intact(self._checkpoint(folder, manifest), read, manifest["blobs"])

    def _task_manifest(self) -> dict[str, Any]:
        return read_manifest(self._runs, self._run_id, TASK, kind="task", what=f"What {self._run_id} began with")

    def _manifest_of(self, folder: Path) -> dict[str, Any]:
        what = f"Checkpoint {folder.name}"
        manifest = read_manifest(self._runs, *self._parts_of(folder), MANIFEST, kind="checkpoint", what=what)
        if self._step_folder(manifest["step"]) != folder:
            raise CheckpointError(f"{what} is damaged: its manifest is that of step {manifest['step']}.")
        return manifest

    def _parts_of(self, folder: Path) -> tuple[str, str, str]:
        return self._run_id, CHECKPOINTS, folder.name

    def _is_pinned(self, folder: Path) -> bool:
        return kind_below(self._runs, *self._parts_of(folder), PINNED) is not None

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

    def _step_folder(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"
