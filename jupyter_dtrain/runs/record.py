"""What the store says of one run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
    tags : list of str
        What the user has marked it with.
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
    tags: list[str] = field(default_factory=list)

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

    def environment(self) -> dict[str, Any]:
        """Return the versions that it ran with; nothing where the file is gone or is none of ours."""
        try:
            about = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        found = about.get("environment") if isinstance(about, dict) else None
        return found if isinstance(found, dict) else {}
