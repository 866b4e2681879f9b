"""Represent the record of one run."""

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
    """Where a cell is: its id in the notebook, and the notebook's file beside the folder of runs; ``None`` if unknown."""

    cell_id: str | None = None
    notebook: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Record of one run.

    Attributes
    ----------
    number : int
        Number of the run in its folder, from 1; numbers of deleted runs are not reused.
    phase : RunPhase
        ``"failed"`` also if the kernel that ran it is gone; `error` then says so.
    started, ended : float
        Seconds since the epoch; `ended` is ``None`` if no process recorded the end.
    arguments : dict
        Options of the run.
    folder : Path
        Holds ``cell.py`` and ``run.json``.
    tags : list of str
        The user's tags.
    hyperparameters : dict, optional
        Hyperparameters by name; ``None`` if an older version without them has recorded the run.
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
            The file cannot be read.
        """
        try:
            return read_below(self.folder.parent, self.folder.name, "cell.py").decode()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"The cell of run {self.run_id} cannot be read: {error}.") from error

    def environment(self) -> dict[str, Any]:
        """Return the versions that the run used; empty if the file cannot be read."""
        return self._about("environment")

    def functions(self) -> dict[str, str]:
        """Return the texts of the notebook's functions and classes that the cell used, by name."""
        return {name: text for name, text in self._read("functions.json").items() if isinstance(text, str)}

    def origin(self) -> CellOrigin:
        """Return where the cell is."""
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
    """Return an id for a run that started at `started`, in seconds since the epoch: local time and a slug of the name."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return "-".join(filter(None, [time.strftime("%Y-%m-%d-%H%M%S", time.localtime(started)), slug]))


# The interface to a run that a cell shows, recorded by this process or by another.


class ViewedRun(Protocol):
    """A running or ended run."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""

    def run_update(self) -> RunUpdate:
        """Return the current state of the run."""

    def outline(self, limit: int) -> list[Points]:
        """Return the curves so far, of at most `limit` points each."""
