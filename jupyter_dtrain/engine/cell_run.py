"""Run a cell on one rank, from the task's contents to the results that are sent home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..analysis.code_objects import keep_text
from ..capture.bundle import unpack
from ..capture.library_patches import in_place
from ..capture.process_state import ProcessSettings
from ..parallel_dims import degrees_of
from ..serialization.identities import Identities
from ..serialization.library_placing import said
from ..serialization.unpickler import Unpacker
from ..strategies import Feature
from ..system.open_writers import flush_all
from ..transport.blob_store import HASHED, BlobFolder
from ..transport.parcel import from_parcel
from . import post_mortem
from .arrival.modules import LocalModules, found_by_name, known_by_names, namespaces_of
from .arrival.objects import DeviceNames, bind
from .arrival.rebuilt import Rebuilt
from .arrival.warnings import filters_kept, warnings_of_callers
from .cell import Failure, describe, forget_frames, run_cell
from .cell_boundary import CellBoundary
from .comm.mesh import Mesh
from .comm.process_group import shared_memory
from .comm.rank_store import StoreChannel
from .control import Control, StopRun, all_failed_alike
from .found_late import FoundLate
from .memory import can_be_used
from .returned_results import ReturnedResults
from .side_effects.shown_output import Count, Shown, logged_at_home
from .side_effects.temp_dirs import TemporaryFolders
from .snapshot.rescue import Rescue
from .strategies.base import LIMIT, RankContext, Strategy
from .task import Outcome, Task
from .telemetry.kernel_link import Interrupts, look_like_a_notebook, output_of, shell_in
from .telemetry.reporter import Reports
from .tensor.ops.losses import CountTargets
from .verify.report import GoBack

_modules = LocalModules()


class CellRun:
    """A task's cell, prepared to run once.

    Parameters
    ----------
    task : Task
    strategy : type of Strategy
        The task's strategy.
    device : torch.device
        The rank's device.
    talk : StoreChannel
    control : Control
    reports : Reports
    """

    def __init__(
        self, task: Task, strategy: type[Strategy], device: torch.device, *, talk: StoreChannel, control: Control, reports: Reports
    ) -> None:
        self._task, self._device = task, device
        self._talk, self._control, self._reports = talk, control, reports
        self._blobs = BlobFolder(task.blob_folder, hashed=HASHED)
        task.surroundings.of_rank(task.rank).set()
        before = ProcessSettings.now()
        _modules.refresh(Path.cwd())
        look_like_a_notebook()
        for filename, text in task.sources.items():
            keep_text(filename, text)  # TorchScript compiles functions from their source
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._identities = Identities(task.ids)
        self._tracked = self._identities.know(self._unpack())
        self._rebuilt = Rebuilt(self._tracked) if task.rank == 0 else None
        self._devices = DeviceNames(self._namespace, self._tracked, device)
        self._devices.move_models()
        self._boundary = CellBoundary(task, self._namespace, talk=talk, control=control, reports=reports)
        self._loops = loops = self._boundary.loops
        self._shown = shown = Shown(seen=task.resume.seen_of(task.rank) if task.resume is not None else Count())
        self._temporary = TemporaryFolders(task.run_id, is_jumping=lambda: loops.is_jumping, is_leaving=lambda: shown.holds)
        self._strategy = strategy(self._context())
        self._strategy.prepare(self._tracked)
        self._results = ReturnedResults(
            self._strategy, device, blobs=self._blobs, tracked=self._tracked, devices=self._devices, before=before
        )
        (task.random_state if device.type == "cpu" else task.random_state.with_gpu()).set()
        self._boundary.measure()
        self._loops.texts.adopt(self._tracked, task.sources)
        self._strategy.begin(self._tracked)
        self._whole = {name: self._namespace[name] for name in task.options.split}
        self._shared_out = self._strategy.share_out(self._whole)
        self._namespace.update(self._shared_out)
        self._identities.stand_in(self._shared_out, self._whole)
        self._results.skip = {**self._shared_out, **self._devices.names, **self._identities.names}
        self._failure: Failure | None = None
        self._value: Any = None

    @filters_kept()
    def _unpack(self) -> list[object]:
        """Unpack the cell's names into its namespace, and return the objects that came with it."""
        packed = from_parcel(self._task.parcel, self._blobs)
        unpacker = Unpacker(
            packed, namespace=self._namespace, device_for=lambda kind: self._device if kind == "cuda" else torch.device(kind)
        )
        values, tracked = unpack(unpacker)
        for line in said(on_engine=True):
            self._reports.notes.say(line)
        bind(self._namespace, values, unsent=self._task.unsent)
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
            file_log=self._boundary.file_log,
            temporary=self._temporary,
        )

    def objects(self) -> list[object]:
        """Return the objects from the notebook, and the values of the cell's names."""
        return self._results.of_cell.objects()

    def outcome(self, interrupts: Interrupts, rescue: Rescue) -> Outcome:
        """Run the cell and return its outcome. Rank 0's contains the results to send home, unless its device has failed.

        `rescue` is ready while the cell runs.
        """
        try:
            outcome = self._outcome(interrupts, rescue)
        except Exception:  # raised after the cell, on a device that failed in it
            if self._failure is None or can_be_used(self._device):
                raise
        else:
            if outcome.failure is None or can_be_used(self._device):
                # If all ranks go back to a snapshot, the current values are not needed, and may be on other ranks.
                is_returned = outcome.rank == 0 and not outcome.goes_on
                return self._results.packed_with(outcome, self._value) if is_returned else outcome
        return Outcome(rank=self._task.rank, failure=self._failure, stopped=False, steps=self._reports.observer.step, device_failed=True)

    def _outcome(self, interrupts: Interrupts, rescue: Rescue) -> Outcome:
        """Run the cell and return its outcome without results."""
        rank, strategy, observer = self._task.rank, self._strategy, self._reports.observer
        if rank == 0 or strategy.is_each_whole:
            rescue.stand_by(self._results.rescued, num_bytes=self._results.num_bytes)
        if Feature.SNAPSHOT in self._task.strategy.supports:
            self._boundary.take_snapshots(self._results, self._strategy, self._devices, self._device)
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
                    value = self._results.settled(value)
                    flush_all()
            except BaseException as error:
                failure = self._failure = describe(error, interrupted=interrupts.raised)
                count_targets = isinstance(error, CountTargets)
                go_back = error if isinstance(error, GoBack) else None
                full_batch = error.kind if isinstance(error, FoundLate) else ""
                goes_on = bool(count_targets or full_batch) or go_back is not None
                forget_frames(error, kept=() if goes_on else post_mortem.keep(error, self._task))
                if not goes_on and self._failed_alike(failure):
                    with suppress(Exception):  # tensors that are not full stay on the engine, as after other errors
                        self._results.settled(None)
            rescue.stand_down()
        if failure is None:
            observer.log_metric(self._namespace)
            strategy.advise()
        if self._rebuilt is not None and (line := self._rebuilt.trained(self._namespace)) is not None:
            self._reports.notes.say(line)
        self._control.close()
        outcome = Outcome(rank=rank, failure=failure, stopped=stopped, steps=observer.step, held=self._shown.held)
        outcome = replace(outcome, count_targets=count_targets, go_back=go_back, full_batch=full_batch)
        if not outcome.goes_on:
            outcome = replace(outcome, states_missing=not strategy.collect(observer.step, LIMIT))
        self._value = value
        return outcome

    def _hold_when_broken(self, interrupts: Interrupts) -> None:
        """Buffer output of the cell's handlers once a rank has left or all ranks go back: a resumed run produces it again."""

        def on_interrupt() -> None:
            if not self._control.is_ending:  # the user has not pressed ■
                self._shown.buffer()

        interrupts.on_interrupt = on_interrupt
        self._control.on_return = self._shown.buffer
        if (memory := shared_memory()) is not None:
            memory.watch(self._shown.buffer)

    @contextmanager
    def _surrounded(self) -> Iterator[None]:
        """Install everything that takes part in the cell's execution, until the end of the ``with`` block."""
        task, rank = self._task, self._task.rank
        with ExitStack() as stack:
            stack.callback(_modules.note)
            stack.enter_context(in_place(self._tracked))
            if self._boundary.snapshots is not None:
                stack.enter_context(self._boundary.snapshots.finished())
            stack.enter_context(self._strategy.installed())
            stack.enter_context(output_of(rank, self._shown if rank == 0 or task.options.output == "all" else None))
            stack.enter_context(logged_at_home(task.loggers, rank=rank, tracked=self._tracked))
            stack.enter_context(shell_in(self._namespace))
            stack.enter_context(warnings_of_callers())
            stack.enter_context(post_mortem.breakpoints_end_the_cell())
            stack.enter_context(found_by_name(self._tracked, self._namespace))
            stack.enter_context(known_by_names(namespaces := [self._namespace, *namespaces_of(self._tracked)]))
            stack.enter_context(self._identities.installed(namespaces))
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
                if self._namespace.get(name) is part:  # the notebook's own value is unchanged
                    self._namespace[name] = self._whole[name]

    def _failed_alike(self, failure: Failure) -> bool:
        if failure.secondary or failure.memory or not self._strategy.is_each_whole or self._task.world_size == 1:
            return False
        return all_failed_alike(failure, self._talk, step=self._reports.observer.step)
