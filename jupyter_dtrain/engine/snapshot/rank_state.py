"""The state of a rank at the top of a loop's iteration: what a snapshot holds of it, and how another process goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...capture.process_state import ProcessSettings
from ...capture.random_state import RandomState
from ...serialization.open_files import kept_open, opened_by
from ...serialization.pickler import Packed
from ...transport.parcel import Parcel
from ..cell_results import CellResults
from ..dedup import Apart, Common
from ..resume.loops import Loops
from ..resume.managers import is_found
from ..resume.position import Position
from ..send_checks import CannotSave
from ..side_effects.file_journal import FileLog
from ..side_effects.shown_output import Count, Shown
from ..side_effects.temp_dirs import TemporaryFolders
from ..staging import bytes_of_state
from ..strategies.base import Strategy
from ..telemetry.observer import Observer


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of one rank.

    Attributes
    ----------
    parcel : Parcel
        What :meth:`CellResults.save` packed, and behind it what this rank has copied for all. Of its extra values the last two are the
        observer's and the strategy's, the others the loops'.
    common : mapping of int to int
        Of what all ranks hold alike, by number, the parts of the parcel that this one has copied.
    elsewhere : tuple of (int, int, int)
        Parts of the parcel that are not there but among `common` of a rank: their index, the rank, and the number.
    names, extra : frozenset of str, list of frozenset of str
        Names without a saved value, of the cell and of each of the extra values.
    streams : object
        Random streams of the rank.
    from_cpu : bool
        As in an :class:`~.task.Outcome`.
    temporary : tuple of str
        The temporary folders that the cell had.
    """

    step: int
    position: Position
    parcel: Parcel
    common: dict[int, int] = field(default_factory=dict)
    elsewhere: tuple[tuple[int, int, int], ...] = ()
    names: frozenset[str]
    extra: list[frozenset[str]]
    random_state: RandomState
    streams: Any
    surroundings: ProcessSettings
    shown: Count
    from_cpu: bool = False
    temporary: tuple[str, ...] = ()


class RankState:
    """What a rank is in the midst of: its parts, each of which knows its own state.

    Parameters
    ----------
    rank : int
    home : CellResults
        What the cell has made of the notebook's values.
    loops : Loops
        Where the cell is, and the variables of its functions.
    strategy : Strategy
        What is on other ranks.
    observer : Observer
    shown : Shown
    skip : dict
        Names that need no saving while they have these values.
    from_cpu : bool
        What the notebook has on the CPU is on the rank's GPU.
    file_log : FileLog, optional
        Of rank 0.
    temporary : TemporaryFolders, optional
    """

    def __init__(
        self,
        *,
        rank: int,
        home: CellResults,
        loops: Loops,
        strategy: Strategy,
        observer: Observer,
        shown: Shown,
        skip: Mapping[str, object],
        from_cpu: bool,
        file_log: FileLog | None = None,
        temporary: TemporaryFolders | None = None,
    ) -> None:
        self._rank, self._home, self._loops, self._strategy, self._observer = rank, home, loops, strategy, observer
        self._shown, self._skip, self._from_cpu, self._file_log = shown, skip, from_cpu, file_log
        self._temporary = temporary or TemporaryFolders()

    @property
    def namespace(self) -> Mapping[str, Any]:
        """The cell's names."""
        return self._home.namespace

    def num_bytes(self, *, to_stage: bool = False) -> int:
        """Return about how many bytes change in training; `to_stage`: for how many a copy of them needs memory."""
        with self._strategy.as_it_is():
            return bytes_of_state(self._home.objects(), to_stage=to_stage)

    @property
    def is_put_together(self) -> bool:
        """Whether what changes in training is put together in files, and needs no other memory."""
        return self._strategy.is_put_together

    def position(self) -> Position | None:
        """Return where a run can go on from what is saved here; ``None``: it cannot, but at an outer loop it may."""
        return None if self._strategy.in_step else self._loops.places.position()

    def apart(self) -> Apart:
        """Return what one rank alone has, as far as this one knows of it."""
        return self._strategy.apart()

    def put_together(self, position: Position, *, all_come: Callable[[str], bool]) -> AbstractContextManager[Apart | None]:
        """Let what is on one rank alone have something that stands for it on all others, until the end of the ``with`` block.

        `all_come` says whether all ranks are at a place, as they are to exchange something there; what is given is ``None`` where not.
        """
        return self._strategy.put_together(lambda: all_come(repr((self._observer.step, position.describe()))))

    def common(self, *, world_size: int, is_alike: bool, apart: Apart) -> Common:
        """Return what one rank is to copy for all: what is `apart`, and, if it `is_alike` on all of them, what optimizers train."""
        with self._strategy.as_it_is():
            return Common(self._home.objects() if is_alike else (), rank=self._rank, world_size=world_size, apart=apart)

    def save(
        self, number: int, position: Position, *, common: Common | None, agree: Callable[[str, str], bool]
    ) -> tuple[Packed, Snapshot] | None:
        """Return the state as that of snapshot `number`: the cell's values, and all else.

        Parameters
        ----------
        common : Common, optional
            What this rank need not pack but for its part.
        agree : callable
            Given what is to be the same on all ranks, and what is if they hold alike what is common, says whether both are.

        Returns
        -------
        tuple of Packed and Snapshot, optional
            The snapshot without its parcel. ``None`` where the ranks are not at one place or do not hold the same.
        """

        def gather(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
            kinds = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]
            same = agree(repr((self._observer.step, position.describe(), kinds)), common.digest() if common is not None else "")
            return self._strategy.full_tensors(tensors) if same else None

        random_state = RandomState.now()
        with kept_open():
            saved = self._home.save(
                [*self._loops.places.values(), self._observer.state_dict(), self._strategy.state_dict()],
                gather=gather,
                skip=self._skip,
                elsewhere=common.elsewhere() if common is not None else {},
            )
        if saved is None:
            return None
        if any(is_found(name) for names in saved.extra for name in names):
            raise CannotSave("with", "something cannot be sent of what its manager found when it was entered")
        if self._file_log is not None:
            self._file_log.snapshot(number, step=self._observer.step, place=position.describe())
        packed, own = common.add_own(saved.packed) if common is not None else (saved.packed, {})
        return packed, Snapshot(
            step=self._observer.step,
            position=position,
            parcel=Parcel(b"", [], []),
            common=own,
            elsewhere=tuple((index, common.owners[number], number) for index, number in packed.elsewhere.items()) if common else (),
            names=saved.names,
            extra=saved.extra,
            random_state=random_state,
            streams=self._strategy.rng_state(),
            surroundings=ProcessSettings.now(),
            shown=self._shown.count,
            from_cpu=self._from_cpu,
            temporary=self._temporary.open,
        )

    def put_in_place(self, snapshot: Snapshot, packed: Packed, *, is_own: bool, device: torch.device) -> list[object]:
        """Be as at a snapshot, and let the loops jump to where it was taken, once the cell is started.

        Parameters
        ----------
        packed : Packed
            What is in its parcel.
        is_own : bool
            Whether it is this rank's own; of another's, all but the random streams is taken over.
        device : torch.device
            The rank's.

        Returns
        -------
        list of object
            Objects that came with it.
        """
        # First, as values may stand for something of them, like an open run. The cell's `with torch.no_grad()` is entered again.
        replace(snapshot.surroundings, gradients=torch.is_grad_enabled()).of_rank(self._rank).set()
        with opened_by(self._file_log.reopen if self._file_log is not None else None):
            values, objects, again = self._home.load(packed, device_for=lambda kind: device if kind == "cuda" else torch.device(kind))
        *values, observed, trained = values
        self._strategy.load_state_dict(trained)
        self._shown.count = snapshot.shown
        self._observer.load_state_dict(observed)
        if is_own:
            self._strategy.set_rng_state(snapshot.streams)
            self._temporary.go_on_with(snapshot.temporary)
        self._loops.texts.adopt(objects, {})
        self._loops.jump(
            snapshot.position,
            values,
            namespace_unsaved=snapshot.names,
            unsaved=snapshot.extra[:-2],
            on_resumed=lambda: self._on_resumed(snapshot, again),
        )
        self._shown.is_muted = True
        return objects

    def _on_resumed(self, snapshot: Snapshot, again: Callable[[], None]) -> None:
        self._shown.is_muted = False
        if self._file_log is not None:
            self._file_log.arrived()
        again()
        snapshot.random_state.set()
        torch.set_grad_enabled(snapshot.surroundings.gradients)
