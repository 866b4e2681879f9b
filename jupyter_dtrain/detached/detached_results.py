"""Pass the results of a detached run to a kernel: to the one that follows it, or signed, as checkpoints are, in the run's folder.

::

    dtrain-runs/<run>/results/
        manifest.json             checksums of the other files, signed
        ending                    the pickled result
        shown                     output of the cell
        blobs/<hash>
        taken                     exists once a kernel has taken the results
"""

from __future__ import annotations

import pickle
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint.disk_blobs import DiskBlobs
from ..checkpoint.manifest import check_signature, check_versions, checksum_of, read_manifest, unpickling, write_manifest
from ..checkpoint.secrets_at_rest import outcome_without_secrets, without_secrets
from ..elastic.run_result import RunResult
from ..elastic.worker_group import WorkerResult
from ..engine.task import Task
from ..errors import CheckpointError, ClusterError
from ..protocol import Snapshot
from ..runs.detached_index import MANIFEST, RESULTS, TAKEN
from ..serialization.pickler import Packed
from ..system.atomic_files import alone_in, folder_made_whole, write_whole
from ..system.confined import mark_below, read_below
from ..system.resources import check_disk
from ..transport.blob_store import BlobFolder
from ..transport.parcel import Parcel, from_parcel, to_parcel

ENDING, SHOWN, BLOBS = "ending", "shown", "blobs"


@dataclass(frozen=True)
class Stored:
    """Result of a run as it is written: the parts of its `RunResult`; `parcel` has the values that rank 0 returned."""

    task: Task
    ends: list[WorkerResult]
    lost: ClusterError | None
    interrupted: bool
    parcel: Parcel | None


@dataclass(frozen=True)
class DetachedResult:
    """Result of a detached run.

    Attributes
    ----------
    snapshot : Snapshot
        Final state of the run for views.
    result : RunResult, optional
    values : Packed, optional
        Values that the cell started with, for a kernel that does not have them.
    error : BaseException, optional
        Why there is no result.
    shown : bytes
        Output of the cell if it was read from a run's folder, for :func:`~.journal.calls_in`.
    """

    snapshot: Snapshot
    result: RunResult | None = None
    values: Packed | None = None
    error: BaseException | None = None
    shown: bytes = b""


def write_ending(folder: Path, ending: DetachedResult, *, shown: Path | None, run_id: str) -> None:
    """Write a result into a new `folder`, and with it the output of the cell, `shown`, if that is in the folder of a run.

    Raises
    ------
    CheckpointError
        There is no space, or the folder cannot be written. It does not exist then.
    """
    # The lock keeps others from removing this folder as a half-written one of a killed kernel.
    # In other folders this cannot happen, and the lock of a cluster's folder is held by its guard.
    alone = nullcontext() if shown is None else alone_in(folder.parent)
    try:
        _check_room(folder.parent, ending, shown)
        with alone, folder_made_whole(folder) as aside:
            blobs = BlobFolder(aside / BLOBS)
            result, stored = ending.result, None
            if result is not None:
                ends = [end if end.outcome is None else replace(end, outcome=replace(end.outcome, parcel=None)) for end in result.ends]
                parcel = None if result.returned is None else to_parcel(result.returned, blobs)
                # The values that the cell started with may be gone from the ranks' folder.
                task = replace(result.task, parcel=Parcel(b"", [], []) if ending.values is None else to_parcel(ending.values, blobs))
                if shown is not None and not task.options.keep_secrets:
                    task = without_secrets(task)
                    ends = [replace(end, outcome=end.outcome and outcome_without_secrets(end.outcome)) for end in ends]
                stored = Stored(task, ends, result.lost, result.interrupted, parcel)
            data = pickle.dumps((ending.snapshot, stored, ending.values is not None, ending.error), protocol=pickle.HIGHEST_PROTOCOL)
            write_whole(aside / ENDING, data, durable=True)
            sums = {path.name: checksum_of(path.read_bytes()) for path in blobs.path.iterdir()}
            content: dict[str, Any] = {"blobs": sums, "ending": checksum_of(data)}
            if shown is not None:
                calls = shown.read_bytes()
                write_whole(aside / SHOWN, calls, durable=True)
                content["shown"] = checksum_of(calls)
            write_manifest(aside / MANIFEST, "ending", content, run_id=run_id)
    except OSError as error:
        raise CheckpointError(f"The results cannot be written to {folder.parent}: {error}.") from error


def read_ending(folder: Path, run_id: str | None, *, trusted: bool) -> DetachedResult:
    """Return what :func:`write_ending` has written into a folder for a run; `run_id` is ``None`` for a run without a record.

    Raises
    ------
    CheckpointError
        It does not exist, was changed, or someone else has written it and it is not `trusted`.
    """
    what = f"What {run_id or 'the run'} has come to"
    within = (folder.parent.parent, folder.parent.name, folder.name)
    manifest = read_manifest(*within, MANIFEST, kind="ending", what=what)
    if not trusted:
        check_signature(manifest, run_id or manifest["run"], advice=f"`%distribute attach {run_id} --trust` loads it anyway")
    check_versions(manifest, what)
    data, shown = (_read(within, name, manifest.get(name), what) for name in (ENDING, SHOWN))
    with unpickling(manifest, what):
        snapshot, stored, has_values, error = pickle.loads(data)
    blobs = DiskBlobs(*within, BLOBS)
    result: RunResult | None = None
    values: Packed | None = None
    if stored is not None:
        parcels = [stored.task.parcel, *(() if stored.parcel is None else (stored.parcel,))]
        for key in {key for parcel in parcels for key in parcel.keys}:
            blobs.check(key, checksum=manifest["blobs"].get(key, ""), what=what)
        # Map the buffers now: mappings outlive the folder.
        returned = None if stored.parcel is None else from_parcel(stored.parcel, blobs)
        values = from_parcel(stored.task.parcel, blobs) if has_values else None
        result = RunResult(stored.ends, returned, stored.lost, stored.interrupted, stored.task)
    return DetachedResult(snapshot, result, values, error, shown)


def results_of(run_folder: Path) -> Path:
    """Return the folder of a run's results for a later kernel."""
    return run_folder / RESULTS


def mark_taken(folder: Path) -> None:
    """Mark the results in `folder` as taken by a kernel. They are kept as long as the run."""
    mark_below(folder.parent.parent, folder.parent.name, folder.name, TAKEN)


def _read(within: tuple[Path, str, str], name: str, checksum: str | None, what: str) -> bytes:
    """Return the contents of a file with this checksum; empty without a checksum."""
    if checksum is None:
        return b""
    with suppress(OSError):
        data = read_below(*within, name, limit=None)
        if checksum_of(data) == checksum:
            return data
    raise CheckpointError(f"{what} is damaged: it is not what was written.")


def _check_room(place: Path, ending: DetachedResult, shown: Path | None) -> None:
    packed = [part for part in (ending.values, None if ending.result is None else ending.result.returned) if part is not None]
    num_bytes = sum(buffer.nbytes for part in packed for buffer in part.buffers)
    check_disk(place, num_bytes + (shown.stat().st_size if shown is not None else 0), what="the results of the run")
