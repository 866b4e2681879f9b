"""The engine's side of a run: join, prepare, run, report.

The notebook kernel calls `run` on every engine. `run` always returns; errors are part of the result.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import replace

import torch

from ..capture.loggers import changes_forgotten
from ..protocol import LeaveGroup, Order, Pause, ReturnResults, TellStanding
from ..serialization.late_bound import bind_late
from ..serialization.library_firsts import firsts_noted
from ..serialization.library_placing import objects_left_as_they_were
from ..serialization.library_state import left_as_it_was
from ..serialization.registries import left_afterwards
from ..system import open_writers
from . import post_mortem
from .arrival.objects import is_stepping
from .cell import describe, forget_frames
from .cell_run import CellRun
from .comm.process_group import ProcessGroup
from .comm.strangers import guarded_groups
from .control import Control
from .memory import Idle, can_be_used
from .snapshot.rescue import Rescue, leave_outcome, rescue_file
from .strategies.base import Strategy, load_strategy
from .task import Outcome, Task
from .telemetry.graph_capture import undisturbed_captures
from .telemetry.kernel_link import Interrupts, orders_to
from .telemetry.reporter import Reports
from .tensor.pending_checks import forget

_group = ProcessGroup()
_idle = Idle()


def run(encoded: bytes, rank: int) -> bytes:
    """Run one task as `rank`. `encoded` is a pickled :class:`Task`, the same for all ranks; the result is a pickled :class:`Outcome`."""
    _idle.ends()
    post_mortem.forget()
    result = _result(encoded, rank)
    post_mortem.clear_callers()  # frames of a failed cell refer to its callers
    return result


def _result(encoded: bytes, rank: int) -> bytes:
    interrupts = Interrupts(not_here=is_stepping)
    bind_late()
    task: Task = replace(pickle.loads(encoded), rank=rank)
    leave = Strategy.leave
    forget()
    try:
        task.surroundings.set_folders()  # the strategy's package may be on a path that only the notebook has set
        strategy = load_strategy(task.strategy)
        leave = strategy.leave
        # In a context of its own: values of context variables would keep the cell's memory for as long as the engine runs.
        outcome = copy_context().run(_run, task, strategy, interrupts)
    except BaseException as error:  # otherwise ipyparallel would show the error as its own
        has_failed = not can_be_used(torch.device(task.device))
        outcome = Outcome(rank=task.rank, failure=describe(error), stopped=False, steps=0, device_failed=has_failed)
        forget_frames(error)
    outcome = replace(outcome, interrupted=interrupts.raised)
    with contextlib.suppress(Exception) if outcome.device_failed else contextlib.nullcontext():
        leave(_group, failed=outcome.failure is not None)
    _idle.begins()
    result = pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)
    if task.strategy.outlives_controller:  # without a controller, the result could not be sent
        with contextlib.suppress(OSError):  # no room; usually the file is not needed
            leave_outcome(rescue_file(task.snapshot_folder, rank), result)
    return result


@contextlib.contextmanager
def _threads_of(task: Task) -> Iterator[None]:
    """Let PyTorch use the notebook's number of threads if the other engines are idle, until the end of the ``with`` block."""
    if task.num_threads is None or task.world_size > 1:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(task.num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(task: Task, strategy: type[Strategy], interrupts: Interrupts) -> Outcome:
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with interrupts.allowed():  # another rank may never join
        talk = strategy.join(task, _group, device)
    reports = Reports(task, device)
    reports.started(world_size=talk.world_size)
    control = Control(talk, pausing=reports.pausing)
    if task.pause:
        control.take(Pause(number=task.pause))
    rescue = Rescue(
        rescue_file(task.snapshot_folder, task.rank),
        rank=task.rank,
        filename=task.filename,
        observer=reports.observer,
        emitter=reports.emitter,
    )

    def take(order: Order) -> None:
        match order:
            case TellStanding():
                reports.tell_standing()
            case LeaveGroup():
                talk.abort()
                _group.disconnect()
            case ReturnResults():
                rescue.start()
            case _:
                control.take(order)

    orders_to(take)
    try:
        with (
            contextlib.closing(reports.emitter),
            left_afterwards(),
            objects_left_as_they_were(),
            firsts_noted((task.source, *task.sources.values())),
            changes_forgotten(),
            left_as_it_was(apart=task.strategy.owns_process_group) as clean_up,
            guarded_groups(),
            undisturbed_captures(reports.emitter),
            _threads_of(task),
        ):
            reports.emitter.start()
            cell_run = CellRun(task, strategy, device, talk=talk, control=control, reports=reports)
            try:
                return cell_run.outcome(interrupts, rescue)
            finally:
                open_writers.leave()
                clean_up(cell_run.objects())
    finally:
        control.release()
        orders_to(control.take)  # other ranks may wait for its answers; `take` would keep the cell's values alive
