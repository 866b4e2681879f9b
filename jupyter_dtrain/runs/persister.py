"""Write the record of one run: create it at the start, append to it during the run, and finish it at the end.

The record must never disturb the training. If it cannot be written, the user is told once and the run continues. Pending writes are kept in
order and retried from time to time and at the end, as a full disk may have space again.
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
"""Seconds until a failed write is retried."""
PACKAGES = ("torch", "numpy", "ipyparallel", "jupyter_dtrain")
"""Packages whose versions are recorded with a run."""


class Recording:
    """Connect a run's recorder with its record in the store.

    Made by :meth:`start` and :meth:`resume`.

    Attributes
    ----------
    run_id : str
    folder : Path, optional
        Folder of the run; ``None`` if nothing can be recorded.
    recorder : RunRecorder
    log : OutputLog
    """

    def __init__(
        self, store: RunStore | None, run_id: str, folder: Path | None, recorder: RunRecorder, *, say: Callable[[str], None]
    ) -> None:
        self._store, self._say = store, say
        self.run_id, self.folder, self.recorder = run_id, folder, recorder
        self.log = OutputLog(folder)
        self._waiting: list[Callable[[RunStore], object]] = []  # pending writes, in order
        self._refused = False  # whether the first of them has failed
        self._next = 0.0  # time of the next write

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
            Name of the run; by default the record numbers it.
        cell : str
            The cell's text.
        world_size : int
        arguments : dict
            Options of the run, as JSON values.
        origin : CellOrigin, optional
            Where the cell is.
        facts : mapping, optional
            Further facts to record beside the versions of packages.
        functions, hyperparameters : mapping, optional
            See :meth:`.RunStore.create_run`.
        detached : bool
            Whether the run continues without the kernel.
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
            shown = store.get_run(run_id).name  # the record numbers a run without a name
        except StoreError as error:  # without its row, nothing of the run can be recorded later
            used = None
            say(f"This run is not recorded: {error}")
        recorder = RunRecorder(run_id=run_id, name=shown, world_size=world_size, detached=detached)
        recorder.hyperparameters.start(hyperparameters or {}, written=True)
        return cls(used, run_id, folder, recorder, say=say)

    @classmethod
    def resume(cls, store: RunStore, record: RunRecord, *, world_size: int, say: Callable[[str], None]) -> Recording:
        """Continue the record of an interrupted run; raise a `UsageError` if another process continues it already."""
        curves: dict[str, Curve] = {}
        with suppress(StoreError):  # `reopen_run` below reports the error
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
        """Finish the run as failed if an exception leaves the ``with`` block."""
        try:
            yield
        except BaseException:
            self.finish("failed", error)
            raise

    def tick(self) -> None:
        """Write new data if `INTERVAL` has passed. Call it a few times a second."""
        if time.monotonic() >= self._next:
            self._write()
            self.log.write()

    def go_back(self, step: int, *, before: Callable[[RunStore], object] = lambda _: None) -> None:
        """Drop what is recorded after `step`, from which the run resumes. `before` is called before that."""
        taken_back: dict[str, int] | None = None

        def cut(store: RunStore) -> None:
            nonlocal taken_back
            before(store)
            taken_back = store.cut_curves(self.run_id, step)

        self._write(cut)
        self.recorder.go_back(step, taken_back)

    def finish(self, phase: RunPhase, error: str | None) -> None:
        """Finish the run and write the rest of its record."""
        self.recorder.finish(phase, error)
        self.log.finish()
        overviews = self.recorder.overviews()
        more = [lambda store: store.keep_overviews(self.run_id, overviews)] if overviews else []
        self._write(lambda store: store.finish_run(self.run_id, phase, error), *more)
        if self._store is not None and len(self._waiting) > 1:  # an earlier write has failed, so this one was not tried
            with suppress(StoreError):
                self._store.finish_run(self.run_id, phase, error)

    def _write(self, *more: Callable[[RunStore], object]) -> None:
        """Write the new points, then `more`: all pending writes in order, until one fails."""
        store = self._store
        if store is None:
            self.recorder.drop_rows()
            return
        rows = self.recorder.take_rows()
        if rows:  # one transaction, as hundreds of ranks have hundreds of curves
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
    """Return the package versions of this process. They are cached, so that later installations do not change them."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "packages": versions}
