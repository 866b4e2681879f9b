"""A checkpoint on disk that the run is to go on from instead: it is read while the ranks train on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import CheckpointError, UsageError
from .checkpoint import Checkpoint
from .keeper import SnapshotKeeper, Whole
from .writer import CheckpointWriter


class RollBack:
    """What was ordered of it, and what has come of that."""

    def __init__(self) -> None:
        self._found: Whole | None = None
        self._reader: threading.Thread | None = None

    def begin(self, step: int, writer: CheckpointWriter, keeper: SnapshotKeeper, *, on_read: Callable[[], None]) -> None:
        """Read the checkpoint of `step`, and call `on_read` when it is there; a `UsageError` or `CheckpointError` says why it cannot be."""
        checkpoint = writer.folder.at(step)
        if self._found is not None or (self._reader is not None and self._reader.is_alive()):
            raise UsageError("The run is going back already.")
        self._reader = threading.Thread(target=self._read, args=(checkpoint, writer, keeper, on_read), name="dtrain-back", daemon=True)
        self._reader.start()

    def _read(self, checkpoint: Checkpoint, writer: CheckpointWriter, keeper: SnapshotKeeper, on_read: Callable[[], None]) -> None:
        try:
            intact = writer.folder.intact(checkpoint.step)
            self._found = writer.folder.read(intact, keeper.folder, number=keeper.new_number())
        except (CheckpointError, OSError) as error:
            writer.say_later(f"The run does not go back to step {checkpoint.step}: {error}")
        else:
            on_read()

    def take(self) -> Whole | None:
        """Return the snapshot that was made of it, once."""
        found, self._found = self._found, None
        return found
