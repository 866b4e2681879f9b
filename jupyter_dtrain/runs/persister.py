"""One run on its way into the record: made when it starts, written while it goes on, ended when it ends.

The record must never cost the training: when it cannot be written, that is said and the run goes on without. What was to be written waits,
in its order, and is tried again from time to time and at the end: a disk that was full may have room again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..protocol import RunPhase, Value
from .curves import Curve
from .output_log import OutputLog
from .record import CellOrigin, RunRecord, new_run_id
from .recorder import RunRecorder
from .store import RunStore

INTERVAL = 1.0
"""Seconds between two writes of new points."""
PATIENCE = 10.0
"""Seconds until what could not be written is tried again."""
PACKAGES = ("torch", "numpy", "ipyparallel", "jupyter_dtrain")
"""Packages whose versions belong to the record of a run."""


class Recording:
    """Keeps a run's recorder and its place in the store together.

    Made by :meth:`start` and :meth:`resume`.

    Attributes
    ----------
    run_id : str
    folder : Path, optional
        The run's own folder; ``None`` where nothing can be recorded.
    recorder : RunRecorder
    log : OutputLog
    """

    def __init__(
        self, store: RunStore | None, run_id: str, folder: Path | None, recorder: RunRecorder, *, say: Callable[[str], None]
    ) -> None:
        self._store, self._say = store, say
        self.run_id, self.folder, self.recorder = run_id, folder, recorder
        self.log = OutputLog(folder)
        self._waiting: list[Callable[[RunStore], object]] = []  # writes to make, in this order
        self._refused = False  # the first of them
        self._next = 0.0  # when it is time for them

    @classmethod
    def start(
        cls,
        store: RunStore,
        *,
        name: str | None,
        cell: str,
        world_size: int,
        arguments: dict[str, Any],
        origin: CellOrigin | None = None,
        facts: Mapping[str, Any] | None = None,
        functions: Mapping[str, str] | None = None,
        hyperparameters: Mapping[str, Value] | None = None,
        detached: bool = False,
        say: Callable[[str], None],
    ) -> Recording:
        """Begin the record of a run.

        Parameters
        ----------
        store : RunStore
        name : str, optional
            What the run is called; by default the record numbers it.
        cell : str
            The cell's text.
        world_size : int
        arguments : dict
            The options of the run, as JSON values.
        origin : CellOrigin, optional
            Where the cell is.
        facts : mapping, optional
            What else it began with, beside the versions of packages.
        functions, hyperparameters : mapping, optional
            See :meth:`.RunStore.create_run`.
        detached : bool
            Whether it goes on without the kernel.
        say : callable
            Shows a line to the user.
        """
        used: RunStore | None = store
        folder: Path | None = None
        run_id = new_run_id(name or "run", time.time())
        shown = name or run_id
        try:
            about = {**environment(), **(facts or {})}
            run_id = store.create_run(
                name, cell, world_size, arguments, about, origin, functions=functions, hyperparameters=hyperparameters
            )
            folder = store.folder / run_id
            shown = store.get_run(run_id).name  # one name wherever it is shown: the record numbers those that have none
        except StoreError as error:  # without a beginning, nothing of it can be recorded later
            used = None
            say(f"This run is not recorded: {error}")
        recorder = RunRecorder(run_id=run_id, name=shown, world_size=world_size, detached=detached)
        recorder.hyperparameters.start(hyperparameters or {}, written=True)
        return cls(used, run_id, folder, recorder, say=say)

    @classmethod
    def resume(cls, store: RunStore, record: RunRecord, *, world_size: int, say: Callable[[str], None]) -> Recording:
        """Go on with the record of a run that was broken off; a `UsageError`: another process does so already."""
        curves: dict[str, Curve] = {}
        with suppress(StoreError):  # what follows says so
            curves = {name: store.points(record.run_id, name) for name in store.names(record.run_id)}
        left = record.ended or max((curve.time[-1] for curve in curves.values() if curve.time), default=record.started)
        idle = max(0.0, time.time() - left)
        recorder = RunRecorder(run_id=record.run_id, name=record.name, world_size=world_size, started=record.started, idle=idle)
        recorder.hyperparameters.start(record.hyperparameters or {}, written=True)
        recorder.restore(curves)
        recording = cls(store, record.run_id, record.folder, recorder, say=say)
        recording._write(lambda store: store.reopen_run(record.run_id, world_size))
        return recording

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
        if time.monotonic() >= self._next:
            self._write()
            self.log.write()

    def go_back(self, step: int, *, before: Callable[[RunStore], object] = lambda _: None) -> None:
        """Take back what is recorded after `step`, from which the run goes on. `before` is called while the record still has it."""
        taken_back: dict[str, int] | None = None

        def cut(store: RunStore) -> None:
            nonlocal taken_back
            before(store)
            taken_back = store.cut_curves(self.run_id, step)

        self._write(cut)
        self.recorder.go_back(step, taken_back)

    def finish(self, phase: RunPhase, error: str | None) -> None:
        """End the run and write the rest of it."""
        self.recorder.finish(phase, error)
        self.log.finish()
        overviews = self.recorder.overviews()
        more = [lambda store: store.keep_overviews(self.run_id, overviews)] if overviews else []
        self._write(lambda store: store.finish_run(self.run_id, phase, error), *more)
        if self._store is not None and len(self._waiting) > 1:  # it was not even tried: what is before it cannot be written
            with suppress(StoreError):
                self._store.finish_run(self.run_id, phase, error)

    def _write(self, *more: Callable[[RunStore], object]) -> None:
        """Write the new points, and then `more`: all that waits, in its order, as far as the store takes it."""
        store = self._store
        if store is None:
            self.recorder.drop_rows()
            return
        rows = self.recorder.take_rows()
        if rows:  # in one transaction: hundreds of ranks have hundreds of curves
            self._waiting.append(lambda store: store.add_points(self.run_id, rows))
        hyperparameters = self.recorder.hyperparameters.take()
        if hyperparameters is not None:
            self._waiting.append(lambda store: store.set_hyperparameters(self.run_id, hyperparameters))
        self._waiting += more
        pause = INTERVAL
        try:
            while self._waiting:
                self._waiting[0](store)
                del self._waiting[0]
        except StoreError as error:
            pause = PATIENCE
            if not self._refused:
                self._refused = True
                self._say(f"This run cannot be recorded now: {error}")
        else:
            if self._refused:
                self._refused = False
                self._say("This run is recorded again, with what was missing.")
        self._next = time.monotonic() + pause


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
