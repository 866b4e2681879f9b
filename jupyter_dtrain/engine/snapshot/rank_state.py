"""The state of a rank at the top of a loop's iteration: what a snapshot contains, and how another process resumes from it."""

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
        The values packed by :meth:`CellResults.save`, followed by what this rank has copied for all. The last two extra values are those of
        the observer and the strategy, the others those of the loops.
    common : mapping of int to int
        By number of a storage that all ranks hold alike: the part of the parcel with this rank's copy.
    elsewhere : tuple of (int, int, int)
        Missing parts of the parcel: index, the rank that has it in `common`, and its number there.
    names, extra : frozenset of str, list of frozenset of str
        Names without a saved value, of the cell and of each extra value.
    streams : object
        Random streams of the rank.
    from_cpu : bool
        As in an :class:`~.task.Outcome`.
    temporary : tuple of str
        Temporary folders of the cell.
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
    """Saves and restores a rank's state through its parts, each of which knows its own state.

    Parameters
    ----------
    rank : int
    home : CellResults
        The cell's values, compared with the notebook's.
    loops : Loops
        Position of the cell, and the variables of its functions.
    strategy : Strategy
        Knows state on other ranks.
    observer : Observer
    shown : Shown
    skip : dict
        Names that are not saved while they have these values.
    from_cpu : bool
        Whether values on the notebook's CPU are on the rank's GPU.
    file_log : FileLog, optional
        Only on rank 0.
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
        """Return about how many bytes change in training; with `to_stage`, for how many of these a copy needs memory."""
        with self._strategy.as_it_is():
            return bytes_of_state(self._home.objects(), to_stage=to_stage)

    @property
    def is_put_together(self) -> bool:
        """Whether training state is assembled in files, and needs no other memory."""
        return self._strategy.is_put_together

    def position(self) -> Position | None:
        """Return the position from which a run can resume; ``None`` if it cannot resume here, though perhaps at an outer loop."""
        return None if self._strategy.in_step else self._loops.places.position()

    def apart(self) -> Apart:
        """Return the state that only one rank has, as far as this rank knows it."""
        return self._strategy.apart()

    def put_together(self, position: Position, *, all_come: Callable[[str], bool]) -> AbstractContextManager[Apart | None]:
        """Let state that only one rank has be represented on all ranks until the end of the ``with`` block.

        `all_come` returns whether all ranks are at the same place, since they exchange data there; if not, the context's value is ``None``.
        """
        return self._strategy.put_together(lambda: all_come(repr((self._observer.step, position.describe()))))

    def common(self, *, world_size: int, is_alike: bool, apart: Apart) -> Common:
        """Return the storages that one rank copies for all: those in `apart` and, if training state `is_alike` on all ranks, that too."""
        with self._strategy.as_it_is():
            return Common(self._home.objects() if is_alike else (), rank=self._rank, world_size=world_size, apart=apart)

    def save(
        self, number: int, position: Position, *, common: Common | None, agree: Callable[[str, str], bool]
    ) -> tuple[Packed, Snapshot] | None:
        """Return the state for snapshot `number`: the cell's values, and the rest.

        Parameters
        ----------
        common : Common, optional
            Storages of which this rank packs only its part.
        agree : callable
            Given a text that must be equal on all ranks, and a digest of the common storages, returns whether both are equal on all.

        Returns
        -------
        tuple of Packed and Snapshot, optional
            The snapshot has an empty parcel. ``None`` if the ranks are at different places or hold different state.

        Raises
        ------
        CannotSave
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

    def put_in_place(self, snapshot: Snapshot, packed: Packed, *, is_own: bool, device: torch.device) -> None:
        """Restore a snapshot's state, and let the loops jump to its position once the cell starts.

        Parameters
        ----------
        packed : Packed
            The contents of its parcel.
        is_own : bool
            Whether the snapshot is this rank's own. Of another rank's, random streams and temporary folders are not restored.
        device : torch.device
            The rank's device.
        """
        # Settings first, as values may depend on them, like an open run. The cell's `with torch.no_grad()` is entered again later.
        replace(snapshot.surroundings, gradients=torch.is_grad_enabled()).of_rank(self._rank).set()
        with opened_by(self._file_log.reopen if self._file_log is not None else None):
            values, objects, again = self._home.load(packed, device_for=lambda kind: device if kind == "cuda" else torch.device(kind))
        *values, observed, trained = values
        self._strategy.adopt(objects)
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

    def _on_resumed(self, snapshot: Snapshot, again: Callable[[], None]) -> None:
        self._shown.is_muted = False
        if self._file_log is not None:
            self._file_log.arrived()
        again()
        snapshot.random_state.set()
        torch.set_grad_enabled(snapshot.surroundings.gradients)
