"""The interface of a strategy on an engine. Each rank has one such object for a cell.

Its methods are called in this order: `join`, `prepare`, `begin`, `share_out`; `installed` around the cell's code, and within it what
snapshots need; `materialize` at the end of the cell (or `collect`, if the ranks do not reach a common end); `leave`. A strategy that
overrides nothing runs the cell on every rank by itself.
"""

# ruff: noqa: B027  # a strategy leaves as they are the methods that it does not need

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from ...strategies import StrategyInfo
from ..comm.mesh import Mesh
from ..comm.process_group import ProcessGroup
from ..comm.rank_store import StoreChannel
from ..control import Control
from ..dedup import NOTHING_APART, Apart
from ..resume.loops import Loops
from ..side_effects.file_journal import FileLog
from ..side_effects.shown_output import Shown
from ..side_effects.temp_dirs import TemporaryFolders
from ..task import Task
from ..telemetry.reporter import Reports

LIMIT, LIMIT_OF_RESCUE = timedelta(seconds=2), timedelta(seconds=0.3)
"""Time limits of :meth:`Strategy.collect`: at the end of a cell, and where a cell does not end and another thread returns its results."""


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What a strategy may use of the rank and its cell.

    Attributes
    ----------
    task : Task
    mesh : Mesh
        The ranks of the run.
    namespace : dict of str to object
        The namespace of the cell.
    talk : StoreChannel
        Exchange between ranks outside collectives.
    control : Control
        Commands of the user, carried out at steps that all ranks agree on.
    reports : Reports
        Reports of the rank to the kernel: steps, times, notes for the user.
    loops : Loops
        The position of the cell in its loops.
    shown : Shown
        The output that it has shown.
    file_log : FileLog, optional
        Changes of files by rank 0; ``None`` on other ranks, and for a program (``--strategy none``).
    temporary : TemporaryFolders
    """

    task: Task
    mesh: Mesh
    namespace: dict[str, Any]
    talk: StoreChannel
    control: Control
    reports: Reports
    loops: Loops
    shown: Shown
    file_log: FileLog | None
    temporary: TemporaryFolders


class Strategy(ABC):
    """How a rank shares the work of a cell with the other ranks.

    Parameters
    ----------
    context : RankContext

    Attributes
    ----------
    is_each_whole : bool
        Whether every rank has the full results of the cell, so that any of them can return these.
    reads_others : bool
        Whether ranks read each other's memory: ranks on several hosts are then connected for that.
    """

    is_each_whole = True
    reads_others: ClassVar[bool] = False

    def __init__(self, context: RankContext) -> None:
        self.context = context

    # -- before and after the cell -----------------------------------------------------------------------------------

    @classmethod
    def join(cls, task: Task, group: ProcessGroup, device: torch.device) -> StoreChannel:
        """Join the process group, and return the channel between the ranks. An interrupt ends the wait for a rank that never comes."""
        if task.rendezvous is None:
            return StoreChannel(HashStore(), rank=0, world_size=1, timeout=task.timeout)
        joined = group.join(
            task.rendezvous, rank=task.rank, world_size=task.world_size, device=device, timeout=task.timeout, between_hosts=cls.reads_others
        )
        store, key = PrefixStore(task.run_id, joined), task.rendezvous.key
        return StoreChannel(store, rank=task.rank, world_size=task.world_size, timeout=task.timeout, key=key)

    @classmethod
    def leave(cls, group: ProcessGroup, *, failed: bool) -> None:
        """Get ready for the next cell. A rank that has `failed` leaves the group, to free ranks that wait for it in a collective."""
        if failed:
            group.leave()

    def prepare(self, objects: Sequence[object]) -> None:
        """Drop the parts that this rank does not keep of the `objects` that came from the notebook.

        The objects are on the rank's device. Their state is recorded after this, so changes here do not count as changes by the cell.
        """

    def begin(self, objects: Sequence[object]) -> None:
        """Follow `objects`, with which the cell is about to begin. Random streams have the notebook's state from here on."""

    def share_out(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the tensors of ``--split`` as the cell is to see them."""
        return dict(tensors)

    @abstractmethod
    def installed(self) -> AbstractContextManager[None]:
        """Return the context manager within which the cell's code runs."""

    def materialize(self, *values: Any, unchanged: Iterable[object] = ()) -> list[Any]:  # noqa: ARG002  # for others
        """Return `values` with full tensors in the place of global ones, on rank 0 at least. Collective, with the same values on all ranks.

        Objects in `unchanged` have not changed, and are not searched.
        """
        return list(values)

    def collect(self, step: int, limit: timedelta) -> bool:  # noqa: ARG002  # for others
        """Bring what other ranks alone have to rank 0, without a collective, where the ranks do not reach a common end.

        Every rank calls it, also after a common end, where nothing is left to do.

        Parameters
        ----------
        step : int
            The last step. State of another step is not used.
        limit : timedelta
            Time that other ranks have.

        Returns
        -------
        bool
            Whether rank 0 has everything, or needs nothing.
        """
        return True

    def advise(self) -> None:
        """Tell the user what could be improved, after a cell without an error."""

    # -- for snapshots -----------------------------------------------------------------------------------------------

    @property
    def in_step(self) -> bool:
        """Whether the cell is between a forward and a backward pass: an autograd graph cannot be saved."""
        return False

    @property
    def is_replicated(self) -> bool:
        """Whether parameters and optimizer state are equal on all ranks, except those in `apart`: one rank then copies each for all."""
        return False

    @property
    def is_put_together(self) -> bool:
        """Whether parameters are sharded, and gathered into the files of a snapshot."""
        return False

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see the rank's own part of objects, without a collective, in the ``with`` block."""
        return nullcontext()

    def full_tensors(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the full tensors of global ones. Collective."""
        return tensors

    def apart(self) -> Apart:
        """Return what only one rank has, as far as this rank knows of it."""
        return NOTHING_APART

    def put_together(self, all_come: Callable[[], bool]) -> AbstractContextManager[Apart | None]:  # noqa: ARG002  # for others
        """Put placeholders on all ranks in the place of what one rank alone has, in the ``with`` block.

        Parameters
        ----------
        all_come : callable
            Returns whether all ranks are at this place, where they exchange data. Collective.

        Returns
        -------
        Apart, optional
            ``None`` if the ranks are not at one place.
        """
        return nullcontext(NOTHING_APART)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs, besides the cell's objects, to resume from here: the same on all ranks."""
        return {}

    def adopt(self, objects: Sequence[object]) -> None:
        """Follow `objects` too, which the cell had made, and which were read from a snapshot."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`. The cell's objects have been restored."""

    def rng_state(self) -> Any:
        """Return the state of the rank's own random streams."""
        return None

    def set_rng_state(self, state: Any) -> None:
        """Resume from a :meth:`rng_state` of this rank."""


def load_strategy(info: StrategyInfo) -> type[Strategy]:
    """Return the class of a strategy.

    Raises
    ------
    ImportError
        This engine does not have it.
    """
    module, _, name = info.implementation.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"--strategy {info.name} is {info.implementation}, which the engines cannot import: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ImportError(f"--strategy {info.name} is {info.implementation}, which is no {Strategy.__name__}.")
    return found
