"""A cell on one rank, from what was sent for it to what goes home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..analysis.code_objects import keep_text
from ..capture.bundle import RandomState, unpack
from ..capture.library_patches import in_place
from ..capture.process_state import ProcessSettings
from ..parallel_dims import degrees_of
from ..serialization.unpickler import Unpacker
from ..strategies import Feature
from ..system.open_writers import flush_all
from ..transport.blob_store import HASHED, BlobFolder
from ..transport.parcel import from_parcel, to_parcel
from . import post_mortem
from .arrival.modules import LocalModules, found_by_name, known_by_names, namespaces_of
from .arrival.objects import DeviceNames, connect_schedulers
from .arrival.rebuilt import Rebuilt
from .arrival.warnings import warnings_of_callers
from .cell import Failure, describe, forget_frames, run_cell
from .cell_results import CellResults
from .comm.mesh import Mesh
from .comm.process_group import shared_memory
from .comm.rank_store import StoreChannel
from .control import Control, StopRun, all_failed_alike
from .forward.watch import KeepsState
from .memory import can_be_used
from .resume.loops import Loops
from .side_effects.file_journal import FileLog, cut_back
from .side_effects.shown_output import Count, Shown, logged_at_home
from .side_effects.temp_dirs import TemporaryFolders
from .snapshot.rank_state import RankState
from .snapshot.rescue import Rescue
from .snapshot.snapshotter import Snapshots
from .staging import bytes_of_state
from .strategies.base import LIMIT, LIMIT_OF_RESCUE, RankContext, Strategy
from .task import Outcome, Task
from .telemetry.kernel_link import Interrupts, look_like_a_notebook, output_of, shell_in
from .telemetry.progress import ExtentMeter
from .telemetry.reporter import Reports
from .tensor.ops.losses import CountTargets
from .verify.report import GoBack

_modules = LocalModules()


class CellRun:
    """The cell of a task, prepared to be run once.

    Parameters
    ----------
    task : Task
    strategy : type of Strategy
        The task's.
    device : torch.device
        The rank's.
    talk : StoreChannel
    control : Control
    reports : Reports
    rescue : Rescue
        Stands by while the cell runs.
    """

    def __init__(
        self,
        task: Task,
        strategy: type[Strategy],
        device: torch.device,
        *,
        talk: StoreChannel,
        control: Control,
        reports: Reports,
        rescue: Rescue,
    ) -> None:
        self._task, self._device = task, device
        self._talk, self._control, self._reports, self._rescue = talk, control, reports, rescue
        self._blobs = BlobFolder(task.blob_folder, hashed=HASHED)
        task.surroundings.of_rank(task.rank).set()
        self._surroundings = ProcessSettings.now()
        _modules.refresh(Path.cwd())
        look_like_a_notebook()
        for filename, text in task.sources.items():
            keep_text(filename, text)  # scripted functions are compiled from it
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._tracked = self._unpack()
        self._rebuilt = Rebuilt(self._tracked) if task.rank == 0 else None
        self._devices = DeviceNames(self._namespace, self._tracked, device)
        self._devices.move_models()
        self._loops = Loops(on_boundary=self._at_boundary, say=reports.notes.say)
        self._shown = Shown(seen=task.resume.seen_of(task.rank) if task.resume is not None else Count())
        self._file_log = self._new_file_log()
        loops, shown = self._loops, self._shown
        self._temporary = TemporaryFolders(task.run_id, is_jumping=lambda: loops.is_jumping, is_leaving=lambda: shown.holds)
        self._strategy = strategy(self._context())
        self._strategy.prepare(self._tracked)
        self._home = CellResults(self._namespace, self._tracked)
        random_state = task.random_state if device.type == "cpu" else task.random_state.with_gpu()
        random_state.set()
        self._follows = task.options.search is not None and task.options.search.prunes  # how a trial does is to be known before its end
        self._meter = ExtentMeter(task.rank, self._loops, reports.observer) if task.rank == 0 else None
        if self._meter is not None:
            reports.emitter.add_source(self._meter.drain)
        self._loops.adopt(self._tracked, task.sources)
        self._strategy.begin(self._tracked)
        self._whole = {name: self._namespace[name] for name in task.options.split}
        self._shared_out = self._strategy.share_out(self._whole)
        self._namespace.update(self._shared_out)
        self._skip = {**self._shared_out, **self._devices.names}
        self._snapshots: Snapshots | None = None
        self._failure: Failure | None = None
        self._value: Any = None

    def _unpack(self) -> list[object]:
        """Put the cell's names into its namespace, and return the objects that came."""
        packed = from_parcel(self._task.parcel, self._blobs)
        unpacker = Unpacker(
            packed, namespace=self._namespace, device_for=lambda kind: self._device if kind == "cuda" else torch.device(kind)
        )
        values, tracked = unpack(unpacker)
        self._namespace.update(values)
        connect_schedulers(tracked)
        return tracked

    def _context(self) -> RankContext:
        task = self._task
        return RankContext(
            task=task,
            mesh=Mesh(task.rank, degrees_of(task.strategy, task.options.mesh, task.world_size), device_type=self._device.type),
            namespace=self._namespace,
            talk=self._talk,
            control=self._control,
            reports=self._reports,
            loops=self._loops,
            shown=self._shown,
            file_log=self._file_log,
            temporary=self._temporary,
        )

    def _new_file_log(self) -> FileLog | None:
        task, loops = self._task, self._loops
        if task.rank != 0 or task.file_log is None or not task.strategy.can_continue:
            return None
        since = task.resume.number if task.resume is not None else None
        if task.spans_hosts and task.resume is not None:
            cut_back(task.file_log, since)  # the notebook's process may not see it
        return FileLog(task.file_log, Path.cwd(), since=since, jumps=lambda: loops.is_jumping)

    @property
    def _has_snapshots(self) -> bool:
        return Feature.SNAPSHOT in self._task.strategy.supports

    def _new_snapshots(self) -> Snapshots:
        """Return what takes snapshots, after the cell goes on from the one that the task names, if it does."""
        task, reports = self._task, self._reports
        state = RankState(
            rank=task.rank,
            home=self._home,
            loops=self._loops,
            strategy=self._strategy,
            observer=reports.observer,
            shown=self._shown,
            skip=self._skip,
            from_cpu=self._devices.from_cpu,
            file_log=self._file_log,
            temporary=self._temporary,
        )
        snapshots = Snapshots(
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
            # Each host is to have all that its ranks need: another may be lost.
            shares=self._strategy.is_replicated and not task.spans_hosts,
        )
        if task.resume is not None and task.resume.number is not None:
            of_rank = task.rank % task.resume.world_size
            connect_schedulers(snapshots.resume(task.resume.number, of_rank=of_rank, device=self._device))
        return snapshots

    def _take_snapshot(self) -> None:
        if self._snapshots is not None:
            self._snapshots.at_boundary()

    def _at_boundary(self) -> None:
        if self._follows and (position := self._loops.position()) is not None and position.is_outermost:
            self._reports.observer.follow_metric(self._namespace)
        self._control.boundary(self._reports.observer.step, self._take_snapshot)
        self._take_snapshot()
        if self._meter is not None:
            self._meter.at_boundary()
        if self._file_log is not None:
            self._file_log.at_boundary()

    def objects(self) -> list[object]:
        """Return what came from the notebook, and the values of the cell's names."""
        return self._home.objects()

    def outcome(self, interrupts: Interrupts) -> Outcome:
        """Run the cell and return what it came to; rank 0's has what goes home, unless its device has failed."""
        try:
            outcome = self._outcome(interrupts)
        except Exception:  # of what is done after the cell, on a device that has failed in it
            if self._failure is None or can_be_used(self._device):
                raise
        else:
            if outcome.failure is None or can_be_used(self._device):
                return self._with_results(outcome, self._value) if outcome.rank == 0 else outcome
        step = self._reports.observer.step
        return Outcome(rank=self._task.rank, failure=self._failure, stopped=False, steps=step, device_failed=True)

    def _outcome(self, interrupts: Interrupts) -> Outcome:
        """Run the cell and return what it came to, without what goes home."""
        rank, strategy, observer = self._task.rank, self._strategy, self._reports.observer
        if rank == 0 or strategy.is_each_whole:
            self._rescue.stand_by(self._rescued, num_bytes=self._num_bytes)
        if self._has_snapshots:
            self._snapshots = self._new_snapshots()
        if observer.best is not None:
            observer.best.start(self._namespace)
        self._hold_when_broken(interrupts)
        failure: Failure | None = None
        stopped = count_targets = False
        go_back: GoBack | None = None
        full_batch = ""
        value: Any = None
        with self._surrounded():
            try:
                with interrupts.allowed():
                    value, stopped = self._run_code()
                    value = self._settled(value)
                    flush_all()
            except BaseException as error:
                failure = self._failure = describe(error)
                count_targets = isinstance(error, CountTargets)
                go_back = error if isinstance(error, GoBack) else None
                full_batch = error.kind if isinstance(error, KeepsState) else ""
                goes_on = bool(count_targets or full_batch) or go_back is not None
                forget_frames(error, kept=() if goes_on else post_mortem.keep(error, self._task))
                if not goes_on and self._failed_alike(failure):
                    with suppress(Exception):  # what is not whole stays behind, as after any other error
                        self._settled(None)
            self._rescue.stand_down()
        if failure is None:
            observer.log_metric(self._namespace)
            strategy.advise()
        if self._rebuilt is not None and (line := self._rebuilt.trained(self._namespace)) is not None:
            self._reports.notes.say(line)
        self._control.close()
        held = self._shown.held
        outcome = Outcome(
            rank=rank,
            failure=failure,
            stopped=stopped,
            steps=observer.step,
            count_targets=count_targets,
            go_back=go_back,
            full_batch=full_batch,
            held=held,
        )
        if not (count_targets or full_batch) and go_back is None:
            outcome = replace(outcome, states_missing=not strategy.collect(observer.step, LIMIT))
        self._value = value
        return outcome

    def _rescued(self, failure: Failure) -> Outcome:
        """Return what the cell has made so far. Called on another thread."""
        step = self._reports.observer.step
        missing = not self._strategy.collect(step, LIMIT_OF_RESCUE)
        outcome = Outcome(rank=self._task.rank, failure=failure, stopped=False, steps=step, states_missing=missing)
        return self._with_results(outcome, skip=self._skip)

    def _num_bytes(self) -> int:
        with self._strategy.as_it_is():
            return bytes_of_state(self._home.objects())

    def _hold_when_broken(self, interrupts: Interrupts) -> None:
        """Hold back what handlers in the cell show when a rank has left, or all go back: what the run comes to again is shown then."""

        def on_interrupt() -> None:
            if not self._control.is_ending:  # nobody has pressed ■
                self._shown.buffer()

        interrupts.on_interrupt = on_interrupt
        self._control.on_return = self._shown.buffer
        memory = shared_memory()
        if memory is not None:
            memory.watch(self._shown.buffer)

    @contextmanager
    def _surrounded(self) -> Iterator[None]:
        """Let everything take part in what the cell does, until the end of the ``with`` block."""
        task, rank = self._task, self._task.rank
        with ExitStack() as stack:
            stack.callback(_modules.note)
            stack.enter_context(in_place(self._tracked))
            if self._snapshots is not None:
                stack.enter_context(self._snapshots.finished())
            stack.enter_context(self._strategy.installed())
            stack.enter_context(output_of(rank, self._shown if rank == 0 or task.options.output == "all" else None))
            stack.enter_context(logged_at_home(task.loggers, rank=rank))
            stack.enter_context(shell_in(self._namespace))
            stack.enter_context(warnings_of_callers())
            stack.enter_context(post_mortem.breakpoints_end_the_cell())
            stack.enter_context(found_by_name(self._tracked, self._namespace))
            stack.enter_context(known_by_names([self._namespace, *namespaces_of(self._tracked)]))
            stack.enter_context(self._loops.installed())
            yield

    def _run_code(self) -> tuple[Any, bool]:
        """Run the cell's code; return the value of its last line, and whether it was stopped."""
        try:
            with self._devices.in_place():
                return run_cell(self._task.source, self._task.filename, self._namespace, self._loops), False
        except StopRun as error:
            forget_frames(error)
            return None, True
        finally:
            for name, part in self._shared_out.items():
                if self._namespace.get(name) is part:  # the notebook's own is as it was
                    self._namespace[name] = self._whole[name]

    def _failed_alike(self, failure: Failure) -> bool:
        if failure.secondary or failure.memory or not self._strategy.is_each_whole or self._task.world_size == 1:
            return False
        return all_failed_alike(failure, self._talk, step=self._reports.observer.step)

    def _settled(self, value: Any) -> Any:
        """Return the cell's value as a whole, after the same has been done to its names and to what it changed. A collective."""
        changed, unchanged = self._home.changed_and_not()
        value, *_ = self._strategy.materialize(value, self._namespace, *changed, unchanged=unchanged)
        return value

    def _with_results(self, outcome: Outcome, value: object = None, *, skip: Mapping[str, object] | None = None) -> Outcome:
        """Return an outcome with what goes home, but for what is in `skip`."""
        with self._strategy.as_it_is():
            packed, not_returned = self._home.pack(value, skip=skip or {})
        after = ProcessSettings.now()
        return replace(
            outcome,
            parcel=to_parcel(packed, self._blobs),
            not_returned=not_returned,
            random_state=RandomState.now(),
            surroundings=after.changed_from(self._surroundings) if after != self._surroundings else None,
            device=self._device.type,
            from_cpu=self._devices.from_cpu,
        )
