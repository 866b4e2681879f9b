"""One run on its way into the record: made when it starts, written while it goes on, ended when it ends.

The record must never cost the training: when it cannot be written, that is said once and the run goes on without.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import StoreError
from ..protocol import RunPhase
from .record import CellOrigin, RunRecord, new_run_id
from .recorder import RunRecorder
from .store import RunStore

INTERVAL = 1.0
"""Seconds between two writes of new points."""
PACKAGES = ("torch", "numpy", "ipyparallel", "jupyter_dtrain")
"""Packages whose versions belong to the record of a run."""


class Recording:
    """Keeps a run's recorder and its place in the store together.

    Parameters
    ----------
    store : RunStore
    name : str, optional
        What the run is called; by default its id.
    cell : str
        The cell's text.
    world_size : int
    arguments : dict
        The options of the run, as JSON values.
    origin : CellOrigin, optional
        Where the cell is.
    detached : bool
        Whether it goes on without the kernel.
    say : callable
        Shows a line to the user.

    Attributes
    ----------
    run_id : str
    folder : Path, optional
        The run's own folder; ``None`` where nothing can be recorded.
    recorder : RunRecorder
    """

    def __init__(
        self,
        store: RunStore,
        *,
        name: str | None,
        cell: str,
        world_size: int,
        arguments: dict[str, Any],
        origin: CellOrigin | None = None,
        detached: bool = False,
        say: Callable[[str], None],
    ) -> None:
        self._store: RunStore | None = store
        self._say = say
        self._written = time.monotonic()
        self.run_id = new_run_id(name or "run", time.time())
        with_store = self._try(lambda: store.create_run(name, cell, world_size, arguments, environment(), origin))
        if with_store is not None:
            self.run_id = with_store
        self.folder = None if with_store is None else store.folder / with_store
        self.recorder = RunRecorder(run_id=self.run_id, name=name or self.run_id, world_size=world_size, detached=detached)

    @classmethod
    def again(cls, store: RunStore, record: RunRecord, *, world_size: int, say: Callable[[str], None]) -> Recording:
        """Go on with the record of a run that was broken off."""
        self = cls.__new__(cls)
        self._store = store
        self._say = say
        self._written = time.monotonic()
        self.run_id, self.folder = record.run_id, record.folder
        self.recorder = RunRecorder(run_id=record.run_id, name=record.name, world_size=world_size, started=record.started)
        known = self._try(lambda: {name: store.points(record.run_id, name) for name in store.names(record.run_id)})
        self.recorder.know(known or {})
        self._try(lambda: store.reopen_run(record.run_id, world_size))
        return self

    @contextmanager
    def failing(self, error: str) -> Iterator[None]:
        """Let the run end as failed where an exception leaves the ``with`` block."""
        try:
            yield
        except BaseException:
            self.finish("failed", error)
            raise

    def tick(self) -> None:
        """Write what is new, if some time has passed. Call it a few times a second."""
        if time.monotonic() - self._written > INTERVAL:
            self._written = time.monotonic()
            self._write()

    def go_back(self, step: int) -> None:
        """Take back what is recorded after `step`, from which the run goes on."""
        self._write()
        store = self._store
        taken_back = self._try(lambda: store.cut_curves(self.run_id, step)) if store is not None else None
        self.recorder.go_back(step, taken_back)

    def finish(self, phase: RunPhase, error: str | None) -> None:
        """End the run and write the rest of it."""
        self.recorder.finish(phase, error)
        self._write()
        store = self._store
        if store is not None:
            self._try(lambda: store.finish_run(self.run_id, phase, error))

    def _write(self) -> None:
        store = self._store
        if store is None:
            self.recorder.drop_rows()
            return
        rows = self.recorder.take_rows()
        if rows:  # in one transaction: hundreds of ranks have hundreds of curves
            curves = [(name, list(points.step), list(points.time), list(points.value)) for name, points in rows]
            self._try(lambda: store.add_curves(self.run_id, curves))

    def _try(self, action: Callable[[], Any]) -> Any:
        if self._store is None:
            return None
        try:
            return action()
        except StoreError as error:
            self._store = None
            self._say(f"This run is not recorded any further: {error}")
            return None


@functools.cache
def environment() -> dict[str, Any]:
    """Return the versions that a run depends on. They are what this process has imported, whatever is installed meanwhile."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "packages": versions}
