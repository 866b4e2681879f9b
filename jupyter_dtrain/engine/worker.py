"""The engine's side of a run: join, prepare, run, report.

`run` is what the notebook kernel calls on every engine. It always returns; what went wrong is part of what it returns.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from ..capture.bundle import RandomState, unpack
from ..capture.pickling import Unpacker
from ..capture.surroundings import Surroundings
from ..protocol import Paused, RankStarted
from ..transport.blobs import HASHED, BlobFolder
from ..transport.wire import from_parcel, to_parcel
from .best import Best
from .cell import Failure, describe, forget_frames, keep_text, run_cell
from .control import Control, StopRun
from .device_names import DeviceNames
from .devices import DeviceSampler
from .emit import Emitter
from .event_writers import event_writers
from .extent import ExtentMeter
from .idle import Idle
from .link import Interrupts, commands_to, look_like_a_notebook, output_of, publisher, shell_in
from .local_modules import LocalModules
from .logged import logged_at_home
from .loops import Loops
from .notes import Notes
from .observe import Observer
from .optimizers import connect_schedulers, is_stepping
from .process_group import ProcessGroup, Rendezvous
from .program import Program
from .rescue import Rescue, rescue_file
from .results import Home
from .rules.losses import CountTargets
from .sent_modules import found_by_name
from .shown import Count, Shown
from .snapshots import Snapshots
from .staging import bytes_of_state
from .stand_ins import known_by_names, namespaces_of
from .standing import standing
from .task import Outcome, Task
from .timing import OUTSIDE, Counted, Timing
from .training import Training
from .warned import warnings_of_callers

_group = ProcessGroup()
_modules = LocalModules()
_idle = Idle()
_samplers: dict[str, DeviceSampler] = {}  # by device: they know what is slow to ask


def host_store(generation: str, address: str, timeout: timedelta) -> Rendezvous:
    """Open the rendezvous of a new group of ranks on this engine."""
    return _group.host_store(generation, address=address, timeout=timeout)


def leave() -> None:
    """Leave the process group."""
    _group.leave()


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
    if task.program_port is not None:
        Program.leave()
    if outcome.failure is not None:
        # The others may wait for this rank in a collective: leaving frees them.
        _group.leave()
    _idle.begins()
    return pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)


def _run(task: Task, interrupts: Interrupts) -> Outcome:
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if task.program_port is not None:
        _group.leave()  # the cell's own group takes its place
    if task.rendezvous is not None:
        joined = _group.join(task.rendezvous, rank=task.rank, world_size=task.world_size, device=device, timeout=task.timeout)
        store: Store = PrefixStore(task.run_id, joined)
        rank, world_size = task.rank, task.world_size
    else:
        store, rank, world_size = HashStore(), 0, 1
    observer = Observer(task.rank, Best(task.best) if task.best is not None else None)
    timing = Timing(task.rank, device)
    sampler = _samplers.get(str(device)) or _samplers.setdefault(str(device), DeviceSampler(task.rank, device))
    sampler.begin(task.rank)
    emitter = Emitter(publisher(), run_id=task.run_id, rank=task.rank, interval=task.emit_interval)
    emitter.add_source(observer.drain)
    emitter.add_source(lambda: timing.drain(observer.step))
    emitter.add_source(sampler.due)
    emitter.emit(
        RankStarted(
            rank=task.rank,
            world_size=task.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=str(device),
            device_name=sampler.device_name(),
        )
    )

    rescue = Rescue(
        rescue_file(task.snapshot_folder, task.rank), rank=task.rank, filename=task.filename, observer=observer, emitter=emitter
    )

    def command(name: str, **options: Any) -> None:
        if name == "stand":
            found = standing(task.rank)
            if found is not None:
                emitter.emit(found)
                emitter.flush()
        elif name == "rescue":
            rescue.begin()
        else:
            control.command(name, **options)

    @contextlib.contextmanager
    def pausing(number: int) -> Iterator[None]:
        emitter.emit(Paused(rank=task.rank, number=number, step=observer.step))
        emitter.flush()
        with Counted(OUTSIDE):
            yield

    control = Control(store, rank=rank, world_size=world_size, timeout=task.timeout, pausing=pausing)
    if task.pause:
        control.command("pause", number=task.pause)
    commands_to(command)
    with contextlib.closing(emitter):
        emitter.start()
        return _run_cell(task, device, control, observer, timing, emitter, interrupts, rescue)


def _run_cell(
    task: Task,
    device: torch.device,
    control: Control,
    observer: Observer,
    timing: Timing,
    emitter: Emitter,
    interrupts: Interrupts,
    rescue: Rescue,
) -> Outcome:
    rank, world_size = task.rank, task.world_size
    notes = Notes(emitter.emit, rank=rank)
    blobs = BlobFolder(task.blob_folder, hashed=HASHED)
    task.surroundings.set()
    surroundings = Surroundings.now()
    _modules.refresh(Path.cwd())
    look_like_a_notebook()
    for filename, text in task.sources.items():
        keep_text(filename, text)  # scripted functions are compiled from it
    namespace: dict[str, Any] = {"__name__": "__main__"}
    packed = from_parcel(task.parcel, blobs)
    values, tracked = unpack(
        Unpacker(packed, namespace=namespace, device_for=lambda kind: device if kind == "cuda" else torch.device(kind))
    )
    namespace.update(values)
    connect_schedulers(tracked)
    devices = DeviceNames(namespace, tracked, device)
    devices.move_models()
    home = Home(namespace, tracked)
    task.random_state.set()

    shown = Shown(seen=task.resume.seen_of(rank) if task.resume is not None else Count())
    snapshots: Snapshots | None = None

    def take_snapshot() -> None:
        if snapshots is not None:
            snapshots.at_boundary()

    def at_boundary() -> None:
        control.boundary(observer.step, take_snapshot)
        take_snapshot()
        if meter is not None:
            meter.at_boundary()

    loops = Loops(on_boundary=at_boundary, say=notes.say)
    meter = ExtentMeter(rank, loops, observer) if rank == 0 else None
    if meter is not None:
        emitter.add_source(meter.drain)
    loops.adopt(tracked, task.sources)
    training: Training | Program
    if task.program_port is not None:
        training = Program(rank=rank, world_size=world_size, address="127.0.0.1", port=task.program_port)
    else:
        training = Training(
            rank=rank,
            world_size=world_size,
            objects=tracked,
            global_numbers=task.numbers == "global",
            global_draws=task.global_draws,
            global_batchnorm=task.global_batchnorm,
            per_rank_batches=task.per_rank_batches,
            split_evaluation=task.split_evaluation,
            split_inputs=task.split_inputs,
            count_targets=task.count_targets,
            control=control,
            observer=observer,
            timing=timing,
            notes=notes,
            cursor_log=loops,
            run_id=task.run_id,
            sources=task.sources,
        )
    failure: Failure | None = None
    stopped = count_targets = False
    value: Any = None
    shared_out = training.share_out({name: namespace[name] for name in task.split})
    whole = {name: namespace[name] for name in task.split}
    namespace.update(shared_out)
    skip = {**shared_out, **devices.names}

    def home_with(outcome: Outcome, value: object = None, skip: Mapping[str, object] | None = None) -> Outcome:
        result, not_returned = home.pack(value, skip=skip or {})
        after = Surroundings.now()
        return replace(
            outcome,
            parcel=to_parcel(result, blobs),
            not_returned=not_returned,
            random_state=RandomState.now(),
            surroundings=after.changed_from(surroundings) if after != surroundings else None,
            device=device.type,
            from_cpu=devices.from_cpu,
        )

    if rank == 0 or isinstance(training, Training):  # what others have of a cell that distributes itself may be a part
        rescue.stand_by(
            lambda failure: home_with(Outcome(rank=rank, failure=failure, stopped=False, steps=observer.step), skip=skip),
            num_bytes=lambda: bytes_of_state(home.objects()),
        )
    if isinstance(training, Training):
        control.on_speeds = training.share_by
        snapshots = Snapshots(
            task.snapshot_folder,
            rank=rank,
            generation=task.generation,
            home=home,
            loops=loops,
            training=training,
            control=control,
            observer=observer,
            shown=shown,
            skip=skip,
            from_cpu=devices.from_cpu,
            emitter=emitter,
            notes=notes,
        )
        if task.resume is not None and task.resume.number is not None:
            connect_schedulers(snapshots.resume(task.resume.number, of_rank=rank % task.resume.world_size, device=device))
    if observer.best is not None:
        observer.best.begin(namespace)
    with (
        snapshots.finished() if snapshots is not None else contextlib.nullcontext(),
        training.installed(),
        event_writers(rank=rank, source=task.source) if isinstance(training, Training) else contextlib.nullcontext(),
        output_of(rank, shown if rank == 0 or task.output == "all" else None),
        logged_at_home(task.loggers, rank=rank),
        shell_in(namespace),
        warnings_of_callers(),
        found_by_name(tracked, namespace),
        known_by_names([namespace, *namespaces_of(tracked)]) if isinstance(training, Training) else contextlib.nullcontext(),
        loops.installed(),
    ):
        try:
            with interrupts.allowed():
                try:
                    with devices.in_place():
                        value = run_cell(task.source, task.filename, namespace, loops)
                except StopRun as error:
                    stopped = True
                    forget_frames(error)
                finally:
                    for name, part in shared_out.items():
                        if namespace.get(name) is part:  # the notebook's own is as it was
                            namespace[name] = whole[name]
                changed, unchanged = home.changed_and_not()
                value, *_ = training.settle(value, namespace, *changed, unchanged=unchanged)
        except BaseException as error:
            failure = describe(error)
            count_targets = isinstance(error, CountTargets)
            forget_frames(error)
        rescue.stand_down()
    control.close()
    outcome = Outcome(rank=rank, failure=failure, stopped=stopped, steps=observer.step, count_targets=count_targets)
    return home_with(outcome, value) if rank == 0 else outcome
