"""The values in a checkpoint: for a notebook that wants its weights, and for other programs."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..capture.bundle import unpack
from ..capture.pickling import Unpacker
from ..engine.results import Home
from ..engine.snapshots import read_snapshot, snapshot_blobs
from ..engine.task import Task
from ..errors import CheckpointError
from ..transport.blobs import BlobFolder
from ..transport.wire import from_parcel
from .checkpoint import Checkpoint
from .checkpoints import CheckpointFolder


@dataclass(frozen=True)
class Saved:
    """What the names of a run's cell held when a checkpoint was taken, on the CPU."""

    checkpoint: Checkpoint
    values: dict[str, Any]


def read_values(folder: CheckpointFolder, step: int | None, *, trusted: bool = False) -> Saved:
    """Return the values of the checkpoint of `step`, by default of the newest that is intact.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or somebody else has written it and it is not `trusted`.
    """
    if not trusted:
        folder.check_origin()
    checkpoint = folder.intact(step, trusted=trusted) if step is not None else folder.newest_intact(trusted=trusted)[0]
    if checkpoint is None:
        raise CheckpointError("The run has no checkpoint that is intact.")
    with TemporaryDirectory() as name:
        blobs = BlobFolder(Path(name) / "task")
        task: Task = pickle.loads(folder.read_task(blobs, trusted=trusted))
        namespace: dict[str, Any] = {"__name__": "__main__"}
        values, tracked = unpack(Unpacker(from_parcel(task.parcel, blobs), namespace=namespace, device_for=_on_cpu))
        namespace.update(values)
        home = Home(namespace, tracked)
        state = Path(name) / "state"
        state.mkdir()
        folder.read(checkpoint, state, number=1)
        snapshot = read_snapshot(state, 1, 0)
        home.load(from_parcel(snapshot.parcel, BlobFolder(snapshot_blobs(state, 1))), device_for=_on_cpu)
    return Saved(checkpoint, {name: value for name, value in namespace.items() if not name.startswith("__")})


def export_models(saved: Saved, folder: Path) -> list[Path]:
    """Write the tensors of each model as ``NAME.safetensors`` into `folder`, under the keys of its ``state_dict``.

    Raises
    ------
    CheckpointError
        The names of the cell hold no model, or safetensors is not installed.
    """
    try:
        from safetensors.torch import save_model
    except ImportError:
        raise CheckpointError(
            "Weights are exported with safetensors, which is not installed: `%pip install safetensors`, then try again."
        ) from None
    models = {name: value for name, value in saved.values.items() if isinstance(value, nn.Module)}
    if not models:
        raise CheckpointError("The names of the cell hold no model: there is nothing to export.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = []
    for name, model in models.items():
        paths.append(folder / f"{name}.safetensors")
        save_model(model, str(paths[-1]), metadata={"step": str(saved.checkpoint.step)})
    return paths


def _on_cpu(_kind: str) -> torch.device:
    return torch.device("cpu")
