"""Snapshots: the state from which another process can resume at the top of a loop's iteration, kept in memory.

All ranks take a snapshot at the same place, each of its own state, and write it to a folder in shared memory, so that it outlives them.
Each snapshot has its own folder of buffers, so that it can be removed as a unit at any time; buffers unchanged since the last snapshot are
hard-linked from there.

The cell waits only while the state is copied: a low-priority thread hashes and writes the copy, at the cost of memory for it. A rank that
dies before the write is complete has not taken the snapshot.

:mod:`.rank_state` defines the contents, :mod:`.state_copy` makes the copy. A snapshot is usable once every rank has written its part at the
same position, which the notebook kernel checks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch

from ...protocol import SnapshotTaken
from ...serialization.pickler import Packed
from ...transport.blob_store import BlobFolder
from ...transport.parcel import from_parcel
from ..comm.process_group import connector
from ..comm.rank_store import StoreChannel
from ..control import Control
from ..resume.position import Position
from ..send_checks import CannotSave
from ..staging import Staging
from ..telemetry.best_metric import Best
from ..telemetry.emitter import Emitter
from ..telemetry.notices import Notices
from ..telemetry.observer import Observer
from .memory_ahead import MemoryAhead
from .put_together import FilledFiles
from .rank_state import RankState
from .replicas import Replicas
from .snapshot_files import SnapshotWriter, read_snapshot, snapshot_blobs, unasked_number
from .state_copy import StateCopier

MEETING = timedelta(seconds=10)
"""Longest wait for all ranks at a place where the metric has a new best value."""


class Snapshots:
    """Takes a rank's snapshots.

    Parameters
    ----------
    folder : Path
        Where snapshots are written.
    state : RankState
    rank, world_size : int
    generation : int
        Number of the generation, from 0.
    talk : StoreChannel
    control : Control
    observer : Observer
        Knows the step, and whether a metric has a new best value.
    emitter : Emitter
        Reports each snapshot, in order with earlier events.
    notes : Notices
    every : int, optional
        A snapshot is taken at each multiple of this number of steps.
    shares : bool
        Whether training state is the same on all ranks.
    """

    def __init__(
        self,
        folder: Path,
        state: RankState,
        *,
        rank: int,
        world_size: int,
        generation: int,
        talk: StoreChannel,
        control: Control,
        observer: Observer,
        emitter: Emitter,
        notes: Notices,
        every: int | None = None,
        shares: bool = True,
    ) -> None:
        self._folder, self._state = folder, state
        self._rank, self._generation = rank, generation
        self._talk, self._control, self._observer, self._emitter, self._notes = talk, control, observer, emitter, notes
        self._every = every
        self._multiples = 0  # multiples of `every` that the run has passed
        self._num_best = 0  # snapshots taken for a new best metric
        staging = Staging(world_size)
        self._copier = StateCopier(folder, state, rank=rank, world_size=world_size, control=control, staging=staging, shares=shares)
        self._writer = SnapshotWriter(folder, rank, Replicas(folder, connector()))
        self._ahead = MemoryAhead(rank, state, staging=staging, writer=self._writer, emitter=emitter)

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Wait at the end of the ``with`` block until all snapshots taken in it are written."""
        try:
            yield
        finally:
            self._writer.wait()

    def at_boundary(self) -> None:
        """Take the snapshots that are due, if the cell can be resumed here."""
        if self._observer.step and not self._ahead.is_over:
            soon = self._control.snapshot_asked or (self._every is not None and self._observer.step >= self._every // 2)
            self._ahead.look(soon=soon, common=self._copier.common)
        number, best = self._control.snapshot_due(self._observer.step), self._observer.best
        at_multiple = self._every is not None and self._observer.step // self._every > self._multiples
        if number is None and best is None and not at_multiple:
            return
        position = self._state.position()
        if position is None:
            return
        if number is not None:
            self._control.snapshot_done(number)
        if at_multiple:
            self._note_multiples()
        if number is not None or at_multiple:
            number = unasked_number(self._generation, 2 * self._multiples) if number is None else number
            self._take_here(number, position, at_multiple=at_multiple)
        if best is not None:
            self._look_at(best, position)

    def _note_multiples(self) -> None:
        if self._every is not None:
            self._multiples = self._observer.step // self._every

    def _look_at(self, best: Best, position: Position) -> None:
        """Take a snapshot if the metric has a new best value. As it was not requested, all ranks must find this at the same place."""
        if position.is_outermost:  # in inner loops the cell may be accumulating the metric
            best.look(self._state.namespace)
        if not best.is_new:
            return
        best.is_new = False
        self._num_best += 1
        number = unasked_number(self._generation, 2 * self._num_best - 1)
        if self._talk.all_here(f"best/{self._num_best}", MEETING):
            self._take_here(number, position, best=best.value)
        else:
            best.give_up()
            self._notes.say(f"No best checkpoint is kept: not all ranks have the same {best.name} at the same place.")

    def _take_here(self, number: int, position: Position, *, best: float | None = None, at_multiple: bool = False) -> None:
        began = time.perf_counter()
        self._writer.wait()  # the last snapshot uses the same memory
        self._ahead.is_over = True
        taken = SnapshotTaken(
            rank=self._rank,
            number=number,
            step=self._observer.step,
            place="",
            seconds=0.0,
            keys=[],
            best=best,
            at_multiple=at_multiple,
        )
        try:
            self._emitter.flush()  # a resumed run repeats events after this point
            copied = self._copier.copy(number, position)
        except Exception as error:  # continue: the only harm is that more is lost if an engine dies
            self._control.refuse(number)
            copied = None
            self._say_not(error)
        sys.stdout.flush()
        taken = replace(taken, seconds=time.perf_counter() - began + self._ahead.take_seconds())
        if copied is None:
            self._tell(taken)
        else:
            self._writer.begin(self._write, taken, position, *copied)

    def _tell(self, taken: SnapshotTaken) -> None:
        self._emitter.emit(taken)
        self._emitter.flush()

    def _say_not(self, error: Exception) -> None:
        if isinstance(error, CannotSave):
            self._notes.say(f"No snapshot is taken: {error}. If an engine dies, the cell resumes from an earlier one, or starts again.")
            return
        self._notes.say(
            f"No snapshot could be taken ({type(error).__name__}: {error}). "
            "If an engine dies, more steps are lost, and this checkpoint is not written."
        )

    def _write(self, taken: SnapshotTaken, position: Position, packed: Packed, rest: bytes, files: FilledFiles) -> None:
        """Write the rank's part and report it. The CPU time of this counts as the rank's."""
        try:
            taken = self._writer.write(taken, position, packed, rest, files)
        except Exception as error:
            files.remove()
            self._say_not(error)
        self._tell(replace(taken, seconds=taken.seconds + time.thread_time()))

    def resume(self, number: int, *, of_rank: int, device: torch.device) -> None:
        """Restore the state of a snapshot, and let the loops jump to its position once the cell starts.

        Parameters
        ----------
        number : int
        of_rank : int
            The rank whose part to use: this rank, unless it has none.
        device : torch.device
        """
        snapshot = read_snapshot(self._folder, number, of_rank)
        blobs = snapshot_blobs(self._folder, number)
        self._writer.before = [blobs]
        packed = from_parcel(snapshot.parcel, BlobFolder(blobs))
        self._state.put_in_place(snapshot, packed, is_own=of_rank == self._rank, device=device)
        self._note_multiples()
