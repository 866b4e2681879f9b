"""What the store says of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..protocol import RunPhase


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What is known of one run.

    Attributes
    ----------
    number : int
        Counts the runs of the folder from 1; a deleted run's number is not given again.
    phase : RunPhase
        ``"failed"`` too if the kernel that ran it is gone; `error` then says so.
    started, ended : float
        Seconds since the epoch; `ended` is ``None`` where nobody was there to write it down.
    arguments : dict
        The options of the run.
    folder : Path
        Holds ``cell.py`` and ``run.json``.
    """

    run_id: str
    number: int
    name: str
    phase: RunPhase
    world_size: int
    started: float
    ended: float | None
    error: str | None
    arguments: dict[str, Any]
    folder: Path

    def cell(self) -> str:
        """Return the text of the cell.

        Raises
        ------
        StoreError
            The file is gone.
        """
        try:
            return (self.folder / "cell.py").read_text(encoding="utf-8")
        except OSError as error:
            raise StoreError(f"The cell of run {self.run_id} cannot be read: {error}.") from error
