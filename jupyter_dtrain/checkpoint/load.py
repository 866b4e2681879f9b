"""``jupyter_dtrain.load_checkpoint``: the values of a checkpoint in any notebook, without engines; and roll-backs of runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..capture.bundle import unpack
from ..engine.cell_results import CellResults
from ..engine.snapshot.snapshot_files import assembled
from ..errors import CheckpointError, UsageError
from ..runs.detached_index import DEFAULT_FOLDER
from ..runs.record import RunRecord
from ..runs.store import RunStore
from ..serialization.unpickler import Unpacker
from ..transport.blob_store import BlobFolder
from ..transport.parcel import from_parcel
from .folder import CheckpointFolder
from .metadata import Checkpoint, Intact, Wanted, step_of
from .snapshot_folder import SnapshotFolder
from .snapshot_index import CompleteSnapshot, SnapshotKeeper
from .writer import CheckpointWriter

# The values of a checkpoint, for notebooks and for export.


@dataclass(frozen=True)
class Saved:
    """The values of the cell's names when a checkpoint was taken, on the CPU."""

    checkpoint: Checkpoint
    values: dict[str, Any]


def read_values(folder: CheckpointFolder, step: int | None, *, trusted: bool = False) -> Saved:
    """Return the values of the checkpoint of `step`, by default of the newest intact one.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or it is not signed by you and not `trusted`.
    """
    if not trusted:
        folder.check_origin()
    intact = folder.intact(step, trusted=trusted) if step is not None else _newest(folder, trusted=trusted)
    with TemporaryDirectory() as name, folder.unpickling():
        blobs = BlobFolder(Path(name) / "task")
        task = folder.read_task(blobs, trusted=trusted)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        values, tracked = unpack(Unpacker(from_parcel(task.parcel, blobs), namespace=namespace, device_for=_on_cpu))
        namespace.update(values)
        home = CellResults(namespace, tracked)
        state = SnapshotFolder(Path(name) / "state")
        state.path.mkdir()
        folder.read(intact, state, number=1)
        snapshot = assembled(partial(state.part, 1), 0)
        home.load(from_parcel(snapshot.parcel, state.blobs(1)), device_for=_on_cpu)
    return Saved(intact.checkpoint, {name: value for name, value in namespace.items() if not name.startswith("__")})


def export_models(saved: Saved, folder: Path) -> list[Path]:
    """Write the tensors of each model to ``NAME.safetensors`` in `folder`, under the keys of its ``state_dict``.

    Raises
    ------
    CheckpointError
        No name of the cell holds a model, or safetensors is not installed.
    """
    try:
        from safetensors.torch import save_model
    except ImportError:
        raise CheckpointError(
            "Weights are exported with safetensors, which is not installed: `%pip install safetensors`, then try again."
        ) from None
    models = {name: value for name, value in saved.values.items() if isinstance(value, nn.Module)}
    if not models:
        raise CheckpointError("The checkpoint has no model: there is nothing to export.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = []
    for name, model in models.items():
        paths.append(folder / f"{name}.safetensors")
        save_model(model, str(paths[-1]), metadata={"step": str(saved.checkpoint.step)})
    return paths


def _newest(folder: CheckpointFolder, *, trusted: bool) -> Intact:
    found, complaints = folder.newest_intact(trusted=trusted)
    if found is None:
        raise CheckpointError(" ".join(["The run has no intact checkpoint.", *complaints]))
    return found


def _on_cpu(_kind: str) -> torch.device:
    return torch.device("cpu")


def load_checkpoint(
    run: str | None = None,
    step: Wanted | None = None,
    *,
    folder: Path | str = DEFAULT_FOLDER,
    trust: bool = False,
    **into: Any,
) -> dict[str, Any]:
    """Return the values of a run's names as they were at a checkpoint, on the CPU.

    Parameters
    ----------
    run : str, optional
        Its id or name; by default the last run that has a checkpoint.
    step : int or "best", optional
        Of the checkpoint, or ``"best"`` for that of a run with ``--best``; by default the newest that is intact.
    folder : path
        Where the runs are.
    trust : bool
        Load it even if not signed by you; this may execute arbitrary code.
    **into
        Objects with a ``load_state_dict`` that take over the state of the value of the same name.

    Returns
    -------
    dict of str to object

    Raises
    ------
    CheckpointError
        There is no such checkpoint, or somebody else has written it.
    UsageError
        An object cannot take over a state.

    Examples
    --------
    ``dtrain.load_checkpoint("digits", 120, model=model, optimizer=optimizer)``
    """
    for name, obj in into.items():
        if not hasattr(obj, "load_state_dict"):
            raise UsageError(f"{name}={type(obj).__name__}: the object has no load_state_dict().")
    store = RunStore(Path(folder))
    try:
        record = _record(store, run)
    finally:
        store.close()
    checkpoints = CheckpointFolder(record.folder, trusting="`load_checkpoint(…, trust=True)` loads it anyway")
    wanted = step_of(step, checkpoints.newest_first(), run=record.name)
    values = read_values(checkpoints, wanted, trusted=trust).values
    for name in into:
        if not hasattr(values.get(name), "state_dict"):
            there = ", ".join(sorted(other for other, value in values.items() if hasattr(value, "state_dict")))
            raise CheckpointError(f"The checkpoint has no {name!r} with a state_dict; it has these: {there or 'none'}.")
    for name, obj in into.items():
        obj.load_state_dict(values[name].state_dict())
    return values


def _record(store: RunStore, run: str | None) -> RunRecord:
    if run is not None:
        return store.run_called(run)
    for record in reversed(store.list_runs()):
        if CheckpointFolder(record.folder).newest_first():
            return record
    raise CheckpointError("No run in this folder has a checkpoint.")


# A roll-back: a checkpoint on disk that the run shall continue from. It is read while the ranks train on.


class RollBack:
    """A roll-back that was ordered, and the snapshot that was read for it."""

    def __init__(self) -> None:
        self._found: CompleteSnapshot | None = None
        self._reader: threading.Thread | None = None

    def start(self, step: int, writer: CheckpointWriter, keeper: SnapshotKeeper, *, on_read: Callable[[], None]) -> None:
        """Start to read the checkpoint of `step`, then call `on_read`; raise a `UsageError` or `CheckpointError` if that cannot be."""
        checkpoint = writer.folder.at(step)
        if self._found is not None or (self._reader is not None and self._reader.is_alive()):
            raise UsageError("The run is going back already.")
        self._reader = threading.Thread(target=self._read, args=(checkpoint, writer, keeper, on_read), name="dtrain-back", daemon=True)
        self._reader.start()

    def _read(self, checkpoint: Checkpoint, writer: CheckpointWriter, keeper: SnapshotKeeper, on_read: Callable[[], None]) -> None:
        try:
            intact = writer.folder.intact(checkpoint.step)
            self._found = writer.folder.read(intact, keeper.store, number=keeper.new_number())
        except (CheckpointError, OSError) as error:
            writer.say_later(f"The run does not go back to step {checkpoint.step}: {error}")
        else:
            on_read()

    def pop(self) -> CompleteSnapshot | None:
        """Return the snapshot that was read, once."""
        found, self._found = self._found, None
        return found
