"""What a run began with, kept in its record: `run.rerun()` runs the cell again from it, in any kernel.

Checkpoints contain it as well, but are removed when the run has finished. This copy stays, so it is limited: values larger than `LIMIT` are
kept only with `--keep-inputs always`. A buffer that a recent run has kept is hard-linked, so runs over one data set store it once.

::

    dtrain-runs/<run>/inputs/
        manifest.json             signed checksums of all other files
        task.pickle               the ranks' task
        blobs/<hash>
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..engine.task import Task
from ..errors import CheckpointError, StoreError
from ..system.atomic_files import alone_in, folder_made_whole, write_whole
from ..system.confined import file_below, is_file_below, is_run_id, names_below, read_below
from ..system.resources import check_disk
from ..transport.base import BlobStore
from ..transport.blob_store import BlobFolder, bytes_of
from .disk_blobs import DiskBlobs
from .manifest import check_signature, check_versions, checksum_of, other_versions, read_manifest, unpickled, write_manifest
from .secrets_at_rest import without_secrets

INPUTS, MANIFEST, TASK, BLOBS = "inputs", "manifest.json", "task.pickle", "blobs"
LIMIT = 64 * 2**20
"""Bytes that are kept by default."""
NEIGHBOURS = 8
"""Number of recent runs that are searched for buffers to link."""
NICENESS = 10
"""Niceness of the writing thread, as the engines train meanwhile."""
DELAY = 10.0
"""Seconds after the start of a run when writing begins, unless the run ends before."""
_being_written: dict[Path, tuple[threading.Thread, threading.Event]] = {}
"""Folder of a run → the thread that writes its inputs, and the event that starts the writing."""
TRUSTING = "`run.rerun(trust=True)` runs it anyway"


def write_inputs(run_folder: Path, *, wait: bool) -> None:
    """Start now to write the inputs of a run, if this process still has to; `wait`: until they are written."""
    if (writing := _being_written.get(run_folder)) is not None:
        thread, due = writing
        due.set()
        if wait:
            thread.join()


class RunInputs:
    """The inputs of a run; `run_folder` must exist."""

    def __init__(self, run_folder: Path) -> None:
        self._runs, self._run_id = run_folder.parent, run_folder.name
        self._what = f"What {self._run_id} began with"

    @property
    def exist(self) -> bool:
        """Whether the record has them. Waits for a write by this process."""
        write_inputs(self._runs / self._run_id, wait=True)
        return is_file_below(self._runs, self._run_id, INPUTS, MANIFEST)

    # -- writing -----------------------------------------------------------------------------------------------------

    def keep(self, task: Task, blobs: BlobStore) -> None:
        """Start to write the inputs of a run in the background, if they are to be kept.

        Neither the engines nor the end of the cell wait for it. The buffers are mapped here, so the current contents are written even if
        their files are deleted. Writing begins when the run has ended (:func:`write_inputs`) or after `DELAY`, so that a short cell has
        the CPUs for itself. Readers wait for it (:attr:`exist`), and so does the exit of the kernel.
        """
        wanted, size = task.options.keep_inputs, sum(map(bytes_of, set(task.parcel.keys))) + task.parcel.num_bytes
        if wanted == "never" or (wanted == "auto" and size > LIMIT):
            return
        folder = self._runs / self._run_id
        buffers = {key: blobs.open(key) for key in sorted(set(task.parcel.keys))}
        due = threading.Event()
        thread = threading.Thread(target=self._write_quietly, args=(task, buffers, size, due), name="dtrain-inputs")
        _being_written[folder] = thread, due
        thread.start()

    def _write_quietly(self, task: Task, buffers: Mapping[str, memoryview], size: int, due: threading.Event) -> None:
        """Write the inputs when `due`. Errors are dropped: a full disk must not end the run, and `rerun` reports that they are missing."""
        if sys.platform == "linux":  # where a thread has its own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        due.wait(DELAY)
        try:
            with suppress(CheckpointError, StoreError, OSError):
                self.write(task, buffers, size)
        finally:
            _being_written.pop(self._runs / self._run_id, None)

    def write(self, task: Task, buffers: Mapping[str, memoryview], size: int = 0) -> None:
        """Write the inputs of a run and their buffers; `size` is the room that they need, in bytes."""
        folder = self._runs / self._run_id
        check_disk(folder, size, what="what a cell begins with")
        data = pickle.dumps(task if task.options.keep_secrets else without_secrets(task), protocol=pickle.HIGHEST_PROTOCOL)
        with alone_in(folder), folder_made_whole(folder / INPUTS) as aside:
            sums = {key: checksum_of(buffer) for key, buffer in buffers.items()}
            stored = BlobFolder(aside / BLOBS)
            for key, checksum in sums.items():
                if not self._link(key, checksum, stored.path / key):
                    stored.write(key, buffers[key])
            write_whole(aside / TASK, data)
            write_manifest(aside / MANIFEST, "task", {"blobs": sums, "data": checksum_of(data)}, run_id=self._run_id)

    def _link(self, key: str, checksum: str, target: Path) -> bool:
        """Hard-link a buffer of a recent run with this checksum; return whether there is one."""
        for other in self._neighbours():
            with suppress(CheckpointError, OSError):
                manifest = read_manifest(self._runs, other, INPUTS, MANIFEST, kind="task", what=other)
                check_signature(manifest, other)
                theirs = next((name for name, known in manifest["blobs"].items() if known == checksum), None)
                if theirs is not None:  # compare checksums, as names need not be hashes
                    with file_below(self._runs, other, INPUTS, BLOBS, theirs) as handle:
                        if os.fstat(handle).st_size != bytes_of(key):
                            continue
                        os.link(self._runs / other / INPUTS / BLOBS / theirs, target, follow_symlinks=False)
                        if os.fstat(handle).st_ino != target.lstat().st_ino:  # the file was replaced meanwhile
                            target.unlink()
                            continue
                    return True
        return False

    def _neighbours(self) -> Iterator[str]:
        runs = sorted((name for name in names_below(self._runs) if is_run_id(name) and name != self._run_id), reverse=True)
        yield from runs[:NEIGHBOURS]

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, *, trusted: bool = False) -> Task:
        """Return the task that the run's ranks got; :meth:`copy_to` copies its buffers.

        Raises
        ------
        CheckpointError
            It was changed, it is not signed by you and not `trusted`, or this Python cannot read it.
        """
        manifest = read_manifest(self._runs, self._run_id, INPUTS, MANIFEST, kind="task", what=self._what)
        if not trusted:
            check_signature(manifest, self._run_id, advice=TRUSTING)
        check_versions(manifest, self._what)
        try:
            data = read_below(self._runs, self._run_id, INPUTS, TASK, limit=None)
        except OSError:
            raise CheckpointError(f"{self._what} is damaged: {TASK} is gone.") from None
        task: Task = unpickled(data, manifest, self._what)
        self._blobs = dict(manifest["blobs"])
        self._versions = other_versions(manifest)
        return task

    @property
    def other_versions(self) -> str:
        """Versions that differ between the run and this process, after :meth:`read`."""
        return self._versions

    def copy_to(self, blobs: BlobStore) -> None:
        """Copy the buffers of the task that was read to `blobs`; raise a `CheckpointError` if one has changed."""
        stored = DiskBlobs(self._runs, self._run_id, INPUTS, BLOBS)
        for key, checksum in self._blobs.items():
            stored.copy_to(blobs, key, checksum=checksum, what=self._what)
