"""What the store says of one run."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import StoreError
from ..protocol import Points, RunPhase, RunUpdate, Value
from ..system.confined import read_below


@dataclass(frozen=True, kw_only=True)
class CellOrigin:
    """Where a cell is: its id in the notebook, and the notebook's file beside the folder of runs; ``None``: not known."""

    cell_id: str | None = None
    notebook: str | None = None


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
    hyperparameters : dict, optional
        By name; ``None`` where an older version has recorded it, which did not know any.
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
    hyperparameters: dict[str, Value] | None = None

    def cell(self) -> str:
        """Return the text of the cell.

        Raises
        ------
        StoreError
            The file is gone, or is none of ours.
        """
        try:
            return read_below(self.folder.parent, self.folder.name, "cell.py").decode()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"The cell of run {self.run_id} cannot be read: {error}.") from error

    def environment(self) -> dict[str, Any]:
        """Return the versions that it ran with; nothing where the file is gone or is none of ours."""
        return self._about("environment")

    def functions(self) -> dict[str, str]:
        """Return the texts of the notebook's functions and classes that the cell used, by name."""
        return {name: text for name, text in self._read("functions.json").items() if isinstance(text, str)}

    def origin(self) -> CellOrigin:
        """Return where the cell was."""
        found = self._about("origin")
        cell_id, notebook = (text if isinstance(text := found.get(name), str) else None for name in ("cell_id", "notebook"))
        return CellOrigin(cell_id=cell_id, notebook=notebook)

    def _about(self, part: str) -> dict[str, Any]:
        found = self._read("run.json").get(part)
        return found if isinstance(found, dict) else {}

    def _read(self, file: str) -> dict[str, Any]:
        try:
            found = json.loads(read_below(self.folder.parent, self.folder.name, file))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def new_run_id(name: str, started: float) -> str:
    """Return an id for a run that started at `started` seconds since the epoch: local time, and the name as far as file names allow."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return "-".join(filter(None, [time.strftime("%Y-%m-%d-%H%M%S", time.localtime(started)), slug]))


# What a cell shows of a run: of one that this process records, or of one that another does.


class ViewedRun(Protocol):
    """A run that goes on or has ended."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""

    def run_update(self) -> RunUpdate:
        """Return the run as it is now."""

    def outline(self, limit: int) -> list[Points]:
        """Return the curves up to now, of at most `limit` points each."""
