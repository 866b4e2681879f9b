"""The engine's side of a run: join, prepare, run, report.

`run` is what the notebook kernel calls on every engine. It always returns; what went wrong is part of what it returns.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from ..serialization.library_state import left_as_it_was
from ..serialization.registries import left_afterwards
from .arrival.objects import is_stepping
from .cell import describe, forget_frames
from .cell_run import CellRun
from .comm.process_group import ProcessGroup
from .comm.store import StoreChannel
from .comm.strangers import guarded_groups
from .control import Control
from .memory import Idle
from .snapshot.rescue import Rescue, leave_outcome, rescue_file
from .strategies.external import ExternalProgram
from .task import Outcome, Task
from .telemetry.kernel_link import Interrupts, commands_to
from .telemetry.reporter import Reports

_group = ProcessGroup()
_idle = Idle()


def run(encoded: bytes, rank: int) -> bytes:
    """Run one task as `rank`. `encoded` is a pickled :class:`Task`, the same for all ranks, and the result a pickled :class:`Outcome`."""
    _idle.ends()
    interrupts = Interrupts(not_here=is_stepping)
    task: Task = replace(pickle.loads(encoded), rank=rank)
    try:
        outcome = _run(task, interrupts)
    except BaseException as error:  # anything else would be shown as an error of ipyparallel's
        outcome = Outcome(rank=task.rank, failure=describe(error), stopped=False, steps=0)
        forget_frames(error)
    outcome = replace(outcome, interrupted=interrupts.raised)
    if task.program_port is not None:
        ExternalProgram.leave()
    if outcome.failure is not None:
        # The others may wait for this rank in a collective: leaving frees them.
        _group.leave()
    _idle.begins()
    result = pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)
    if task.program_port is not None:
        with contextlib.suppress(OSError):  # no room; as a rule nobody needs it
            leave_outcome(rescue_file(task.snapshot_folder, rank), result)
    return result


@contextlib.contextmanager
def _threads_of(task: Task) -> Iterator[None]:
    """Let PyTorch have the notebook's threads where the other engines have nothing to do, until the end of the ``with`` block."""
    if task.num_threads is None or task.world_size > 1:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(task.num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(task: Task, interrupts: Interrupts) -> Outcome:
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if task.program_port is not None:
        _group.leave()  # the cell's own group takes its place
    key = b""
    if task.program_port is None and task.rendezvous is not None:
        with interrupts.allowed():  # another may never come
            joined = _group.join(task.rendezvous, rank=task.rank, world_size=task.world_size, device=device, timeout=task.timeout)
        store: Store = PrefixStore(task.run_id, joined)
        rank, world_size, key = task.rank, task.world_size, task.rendezvous.key
    else:
        store, rank, world_size = HashStore(), 0, 1
    reports = Reports(task, device)
    reports.started(world_size=world_size)
    talk = StoreChannel(store, rank=rank, world_size=world_size, timeout=task.timeout, key=key)
    control = Control(talk, pausing=reports.pausing)
    if task.pause:
        control.command("pause", number=task.pause)
    rescue = Rescue(
        rescue_file(task.snapshot_folder, task.rank),
        rank=task.rank,
        filename=task.filename,
        observer=reports.observer,
        emitter=reports.emitter,
    )

    def command(name: str, **options: Any) -> None:
        if name == "stand":
            reports.tell_standing()
        elif name == "rescue":
            rescue.start()
        else:
            control.command(name, **options)

    commands_to(command)
    try:
        apart = task.program_port is not None
        with (
            contextlib.closing(reports.emitter),
            left_afterwards(),
            left_as_it_was(apart=apart) as clean_up,
            guarded_groups(),
            _threads_of(task),
        ):
            reports.emitter.start()
            cell_run = CellRun(task, device, talk=talk, control=control, reports=reports, rescue=rescue)
            try:
                return cell_run.outcome(interrupts)
            finally:
                clean_up(cell_run.objects())
    finally:
        control.release()
        commands_to(control.command)  # for whose answers others may wait; all else would keep the cell's values until the next cell
