"""Snapshots: what a rank needs to go on from the top of a loop's iteration in another process, kept in memory.

All ranks take a snapshot at the same place, each of its own state, and write it into a folder of shared memory, so it
outlives the rank. Each has its buffers in a folder of its own, so that it is removed as a whole, whatever else is being
written; those that have not changed since the one before are linked from there.

The cell waits while the state is copied, and no longer: a thread of low priority hashes and writes the copy. A rank that dies before that
is through has not taken the snapshot. The copy's memory is the price.

What it holds, :mod:`.rank_state` says, and how it is copied :mod:`.state_copy`. A snapshot is of use once every rank has written its own,
at one position: the notebook kernel sees to that.
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
"""Time in which all ranks come to a place where their metric is better than ever."""


class Snapshots:
    """Takes a rank's snapshots.

    Parameters
    ----------
    folder : Path
        Where they are written.
    state : RankState
    rank, world_size : int
    generation : int
        Of the ranks, from 0.
    talk : StoreChannel
    control : Control
    observer : Observer
        Knows the step, and whether a metric is better than ever.
    emitter : Emitter
        Tells of each, after all that happened before it.
    notes : Notices
    every : int, optional
        Steps at whose multiples one is taken in any case.
    shares : bool
        Whether what optimizers train is the same on all ranks.
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
        self._multiples = 0  # of these steps that are behind the run
        self._num_best = 0  # snapshots because of the metric
        staging = Staging(world_size)
        self._copier = StateCopier(folder, state, rank=rank, world_size=world_size, control=control, staging=staging, shares=shares)
        self._writer = SnapshotWriter(folder, rank, Replicas(folder, connector()))
        self._ahead = MemoryAhead(rank, state, staging=staging, writer=self._writer, emitter=emitter)

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Wait at the end of the ``with`` block until what was taken in it is written."""
        try:
            yield
        finally:
            self._writer.wait()

    def at_boundary(self) -> None:
        """Take the snapshots that are due here, if any are and if the cell can be resumed here."""
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
        """Take a snapshot if the metric is better than ever: unasked, so all ranks have to find that here."""
        if position.is_outermost:  # elsewhere the cell may be adding it up
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
        self._writer.wait()  # the memory is that of the one before
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
            self._emitter.flush()  # what is told after this is told again
            copied = self._copier.copy(number, position)
        except Exception as error:  # the cell goes on: it would only lose more if an engine died
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
            self._notes.say(f"No snapshot is taken: {error}. If an engine dies, the cell goes on from an earlier one, or begins again.")
            return
        self._notes.say(
            f"No snapshot could be taken ({type(error).__name__}: {error}). "
            "If an engine dies, more steps are lost, and this checkpoint is not written."
        )

    def _write(self, taken: SnapshotTaken, position: Position, packed: Packed, rest: bytes, files: FilledFiles) -> None:
        """Write the rank's part and tell of it. What this takes of the processor's time counts as the rank's."""
        try:
            taken = self._writer.write(taken, position, packed, rest, files)
        except Exception as error:
            files.remove()
            self._say_not(error)
        self._tell(replace(taken, seconds=taken.seconds + time.thread_time()))

    def resume(self, number: int, *, of_rank: int, device: torch.device) -> list[object]:
        """Put the state of a snapshot in place and let the loops jump to where it was taken, once the cell is started.

        Parameters
        ----------
        number : int
        of_rank : int
            Whose part to take: the rank's own, unless it had none.

        Returns
        -------
        list of object
            Objects that came with it.
        """
        snapshot = read_snapshot(self._folder, number, of_rank)
        blobs = snapshot_blobs(self._folder, number)
        self._writer.before = [blobs]
        packed = from_parcel(snapshot.parcel, BlobFolder(blobs))
        objects = self._state.put_in_place(snapshot, packed, is_own=of_rank == self._rank, device=device)
        self._note_multiples()
        return objects
