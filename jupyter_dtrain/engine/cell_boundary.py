"""Actions of a rank at the tops of the cell's loops, where a run can resume, and the state that must outlive the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .arrival.objects import DeviceNames
from .comm.rank_store import StoreChannel
from .control import Control
from .resume.loops import Loops
from .returned_results import ReturnedResults
from .side_effects.file_journal import FileLog
from .side_effects.journal_entries import cut_back
from .snapshot.rank_state import RankState
from .snapshot.snapshotter import Snapshots
from .strategies.base import Strategy
from .task import Task
from .telemetry.progress import ExtentMeter
from .telemetry.reporter import Reports


class CellBoundary:
    """Runs a rank's actions at the top of each iteration of the cell's own loops.

    Parameters
    ----------
    task : Task
    namespace : dict of str to object
        The cell's names.
    talk : StoreChannel
    control : Control
    reports : Reports

    Attributes
    ----------
    loops : Loops
    file_log : FileLog, optional
        Records file operations of rank 0.
    snapshots : Snapshots, optional
        Set by :meth:`take_snapshots`.
    """

    def __init__(self, task: Task, namespace: dict[str, Any], *, talk: StoreChannel, control: Control, reports: Reports) -> None:
        self._task, self._namespace, self._talk, self._control, self._reports = task, namespace, talk, control, reports
        self.loops = Loops(on_boundary=self._at_boundary, say=reports.notes.say)
        self.file_log = self._new_file_log()
        self.snapshots: Snapshots | None = None
        self._meter: ExtentMeter | None = None
        self._follows = task.options.search is not None and task.options.search.prunes  # pruning needs a trial's metric before its end

    def _new_file_log(self) -> FileLog | None:
        task, loops = self._task, self.loops
        if task.rank != 0 or task.file_log is None or not task.strategy.can_continue:
            return None
        since = task.resume.number if task.resume is not None else None
        if task.spans_hosts and task.resume is not None:
            cut_back(task.file_log, since)  # the notebook's process may have no access to it
        return FileLog(task.file_log, Path.cwd(), since=since, jumps=lambda: loops.is_jumping)

    def measure(self) -> None:
        """Report the cell's progress to the kernel, on rank 0."""
        if self._task.rank == 0:
            self._meter = ExtentMeter(self._task.rank, self.loops, self._reports.observer)
            self._reports.emitter.add_source(self._meter.drain)

    def take_snapshots(self, results: ReturnedResults, strategy: Strategy, devices: DeviceNames, device: torch.device) -> None:
        """Take snapshots from now on, and restore the snapshot that the task names, if any."""
        task, reports = self._task, self._reports
        state = RankState(
            rank=task.rank,
            home=results.of_cell,
            loops=self.loops,
            strategy=strategy,
            observer=reports.observer,
            shown=strategy.context.shown,
            skip=results.skip,
            from_cpu=devices.from_cpu,
            file_log=self.file_log,
            temporary=strategy.context.temporary,
        )
        self.snapshots = snapshots = Snapshots(
            task.snapshot_folder,
            state,
            rank=task.rank,
            world_size=task.world_size,
            generation=task.generation,
            talk=self._talk,
            control=self._control,
            observer=reports.observer,
            emitter=reports.emitter,
            notes=reports.notes,
            every=every if isinstance(every := task.options.checkpoint_every, int) else None,
            # Each host needs a complete copy, in case the other hosts are lost.
            shares=strategy.is_replicated and not task.spans_hosts,
        )
        if task.resume is not None and task.resume.number is not None:
            of_rank = task.rank % task.resume.world_size
            snapshots.resume(task.resume.number, of_rank=of_rank, device=device)

    def _take_snapshot(self) -> None:
        if self.snapshots is not None:
            self.snapshots.at_boundary()

    def _at_boundary(self) -> None:
        if self._follows and (position := self.loops.places.position()) is not None and position.is_outermost:
            self._reports.observer.follow_metric(self._namespace)
        self._control.boundary(self._reports.observer.step, self._take_snapshot)
        self._take_snapshot()
        if self._meter is not None:
            self._meter.at_boundary()
        if self.file_log is not None:
            self.file_log.at_boundary()
