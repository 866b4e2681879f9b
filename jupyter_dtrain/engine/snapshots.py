"""Snapshots: what a rank needs to go on from the top of a loop's iteration in another process, kept in memory.

All ranks take a snapshot at the same place, each of its own state, and write it into a folder of shared memory, so it
outlives the rank. Each has its buffers in a folder of its own, so that it is removed as a whole, whatever else is being
written; those that have not changed since the one before are linked from there.

It holds what the cell has made of the notebook's values (:mod:`.results`), the variables of the functions that it is in, the
position in its loops (:mod:`.loops`), random states and counts. A snapshot is of use once every rank has written its own,
at one position: the notebook kernel sees to that.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from ..capture.bundle import RandomState
from ..capture.surroundings import Surroundings
from ..protocol import SnapshotTaken
from ..transport.blobs import BlobFolder, write_whole
from ..transport.wire import Parcel, from_parcel, to_parcel
from .best import Best
from .control import Control
from .emit import Emitter
from .loops import Loops
from .notes import Notes
from .observe import Observer
from .positions import Position
from .results import Home
from .shown import Count, Shown
from .training import Training

UNASKED = 1 << 32
"""From here on, numbers are of snapshots that nobody has asked for."""
MEETING = timedelta(seconds=10)
"""Time in which all ranks come to a place where their metric is better than ever."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of one rank.

    Attributes
    ----------
    parcel : Parcel
        What :meth:`Home.save` packed; of its extra values the last two are the observer's and the training's, the others the loops'.
    names, extra : frozenset of str, list of frozenset of str
        Names without a saved value, of the cell and of each of the extra values.
    streams : object
        Random streams of the rank.
    """

    step: int
    position: Position
    parcel: Parcel
    names: frozenset[str]
    extra: list[frozenset[str]]
    random_state: RandomState
    streams: Any
    surroundings: Surroundings
    shown: Count


def snapshot_file(folder: Path, number: int, rank: int) -> Path:
    """Return where `rank` keeps its part of snapshot `number`."""
    return folder / f"{number}-{rank}"


def snapshot_blobs(folder: Path, number: int) -> Path:
    """Return where the buffers of snapshot `number` lie, those of all ranks."""
    return folder / f"{number}.blobs"


def unasked_number(generation: int, count: int) -> int:
    """Return the number of a snapshot that nobody has asked for, the `count`-th of a generation of ranks; no other has it."""
    return (generation + 1) * UNASKED + count


class Snapshots:
    """Takes a rank's snapshots.

    Parameters
    ----------
    folder : Path
        Where they are written.
    rank : int
    generation : int
        Of the ranks, from 0.
    skip : dict
        Names that need no saving while they have these values.
    emitter : Emitter
        Tells of each, after all that happened before it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        generation: int,
        home: Home,
        loops: Loops,
        training: Training,
        control: Control,
        observer: Observer,
        shown: Shown,
        skip: Mapping[str, object],
        emitter: Emitter,
        notes: Notes,
    ) -> None:
        self._folder, self._rank, self._generation = folder, rank, generation
        self._home, self._loops, self._training = home, loops, training
        self._control, self._observer, self._shown = control, observer, shown
        self._skip = skip
        self._emitter, self._notes = emitter, notes
        self._num_best = 0  # snapshots because of the metric
        self._before: Path | None = None  # the buffers of the rank's last snapshot

    def at_boundary(self) -> None:
        """Take the snapshots that are due here, if any are and if the cell can be resumed here."""
        number, best = self._control.snapshot_due(self._observer.step), self._observer.best
        if (number is None and best is None) or self._training.in_step:
            return
        position = self._loops.position()
        if position is None:
            return  # it can at an outer loop
        if number is not None:
            self._control.snapshot_done(number)
            self._take_here(number, position)
        if best is not None:
            self._look_at(best, position)

    def _look_at(self, best: Best, position: Position) -> None:
        """Take a snapshot if the metric is better than ever: unasked, so all ranks have to find that here."""
        if position.is_outermost:  # elsewhere the cell may be adding it up
            best.look(self._home.namespace)
        if not best.is_new:
            return
        best.is_new = False
        self._num_best += 1
        number = unasked_number(self._generation, self._num_best)
        if self._control.all_here(f"best/{self._num_best}", MEETING):
            self._take_here(number, position, best.value)
        else:
            best.give_up()
            self._notes.say(f"No checkpoint is kept as the best: not all ranks have the same {best.name} at the same place.")

    def _take_here(self, number: int, position: Position, best: float | None = None) -> None:
        began = time.perf_counter()
        keys: list[str] | None = None
        try:
            snapshot = self._take(number, position)
            if snapshot is not None:
                keys = self._write(number, snapshot)
        except Exception as error:  # the cell goes on: it would only lose more if an engine died
            self._control.tell(f"state/{number}", "")  # the others wait for a word
            self._notes.say(f"No snapshot could be taken ({type(error).__name__}: {error}). Should an engine die, more steps are lost.")
        sys.stdout.flush()
        self._emitter.emit(
            SnapshotTaken(
                rank=self._rank,
                number=number,
                step=self._observer.step,
                place=position.describe() if keys is not None else "",
                seconds=time.perf_counter() - began,
                keys=keys or [],
                best=best,
            )
        )
        self._emitter.flush()

    def _write(self, number: int, snapshot: Snapshot) -> list[str]:
        """Write the rank's part and return the buffers that it refers to."""
        write_whole(snapshot_file(self._folder, number, self._rank), pickle.dumps(snapshot, protocol=pickle.HIGHEST_PROTOCOL))
        return snapshot.parcel.keys

    def _take(self, number: int, position: Position) -> Snapshot | None:
        """Return the state of the rank, ``None`` where the ranks are not at one place or do not hold the same."""

        def gather(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
            kinds = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
            same = self._control.all_say(f"state/{number}", repr((self._observer.step, position.describe(), kinds)))
            return self._training.wholes(tensors) if same else None

        random_state = RandomState.now()
        self._emitter.flush()  # what is told after this is told again
        saved = self._home.save([*self._loops.values(), self._observer.state(), self._training.state()], gather=gather, skip=self._skip)
        if saved is None:
            return None
        blobs, self._before = BlobFolder(snapshot_blobs(self._folder, number), self._before), snapshot_blobs(self._folder, number)
        return Snapshot(
            step=self._observer.step,
            position=position,
            parcel=to_parcel(saved.packed, blobs),
            names=saved.names,
            extra=saved.extra,
            random_state=random_state,
            streams=self._training.streams(),
            surroundings=Surroundings.now(),
            shown=self._shown.count,
        )

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
        self._before = snapshot_blobs(self._folder, number)
        packed = from_parcel(snapshot.parcel, BlobFolder(self._before))
        values, objects, again = self._home.load(packed, device_for=lambda kind: device if kind == "cuda" else torch.device(kind))
        *values, observed, trained = values
        self._training.set_state(trained)
        self._shown.count = snapshot.shown
        self._observer.set_state(observed)
        if of_rank == self._rank:
            self._training.set_streams(snapshot.streams)
        replace(snapshot.surroundings, gradients=torch.is_grad_enabled()).set()  # the cell's `with torch.no_grad()` is entered again
        self._loops.adopt(objects, {})
        self._loops.jump(
            snapshot.position,
            values,
            namespace_unsaved=snapshot.names,
            unsaved=snapshot.extra[:-2],
            on_resumed=lambda: self._on_resumed(snapshot, again),
        )
        return objects

    @staticmethod
    def _on_resumed(snapshot: Snapshot, again: Callable[[], None]) -> None:
        again()
        snapshot.random_state.set()
        torch.set_grad_enabled(snapshot.surroundings.gradients)


def read_snapshot(folder: Path, number: int, rank: int) -> Snapshot:
    """Return a rank's part of a snapshot."""
    snapshot: Snapshot = pickle.loads(snapshot_file(folder, number, rank).read_bytes())
    return snapshot
