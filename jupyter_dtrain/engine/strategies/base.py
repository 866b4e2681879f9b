"""What a strategy is on an engine: an object for each cell and rank, asked at the same moments whatever it does.

In the order in which they come: `join`, `prepare`, `begin`, `share_out`, `installed` around the cell's code and within it whatever a
snapshot asks for, `materialize` at its end (or `collect`, where the ranks come to no common one), `leave`. Without anything overridden
every rank runs the cell by itself.
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
"""Time that :meth:`Strategy.collect` has; where the cell of this rank does not end, and another thread takes home what it has."""


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """What a rank has for a cell, which its strategy may use.

    Attributes
    ----------
    task : Task
    mesh : Mesh
        The ranks of the run.
    namespace : dict of str to object
        The cell's names.
    talk : StoreChannel
        What ranks tell each other outside collectives.
    control : Control
        Commands at steps that all ranks agree on.
    reports : Reports
        What the rank tells the kernel: steps, times, lines for the user.
    loops : Loops
        Where the cell is.
    shown : Shown
        What it has shown.
    file_log : FileLog, optional
        What rank 0 does to files; ``None`` on others and for a program.
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
    """How one rank shares the work of a cell with the others.

    Parameters
    ----------
    context : RankContext

    Attributes
    ----------
    is_each_whole : bool
        Whether what the cell makes is whole on every rank, so that any can take it home.
    reads_others : bool
        Whether ranks read each other's memory: those of several hosts are connected for it.
    """

    is_each_whole = True
    reads_others: ClassVar[bool] = False

    def __init__(self, context: RankContext) -> None:
        self.context = context

    # -- before and after the cell -----------------------------------------------------------------------------------

    @classmethod
    def join(cls, task: Task, group: ProcessGroup, device: torch.device) -> StoreChannel:
        """Meet the other ranks, and return what they tell each other by. An interrupt ends it, as another may never come."""
        if task.rendezvous is None:
            return StoreChannel(HashStore(), rank=0, world_size=1, timeout=task.timeout)
        joined = group.join(
            task.rendezvous, rank=task.rank, world_size=task.world_size, device=device, timeout=task.timeout, between_hosts=cls.reads_others
        )
        store, key = PrefixStore(task.run_id, joined), task.rendezvous.key
        return StoreChannel(store, rank=task.rank, world_size=task.world_size, timeout=task.timeout, key=key)

    @classmethod
    def leave(cls, group: ProcessGroup, *, failed: bool) -> None:
        """Be ready for the next cell. Others may wait for a rank that has `failed`, in a collective: leaving frees them."""
        if failed:
            group.leave()

    def prepare(self, objects: Sequence[object]) -> None:
        """Let go of what this rank does not keep of the `objects` that came from the notebook.

        They are on the rank's device, and nothing has been noted of them yet: what is changed here is no change of the cell's.
        """

    def begin(self, objects: Sequence[object]) -> None:
        """Take part in what the cell is going to do with `objects`; the random streams are the notebook's from here on."""

    def share_out(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return `tensors` of ``--split`` as the cell is to have them."""
        return dict(tensors)

    @abstractmethod
    def installed(self) -> AbstractContextManager[None]:
        """Take part in what the cell does, until the end of the ``with`` block."""

    def materialize(self, *values: Any, unchanged: Iterable[object] = ()) -> list[Any]:  # noqa: ARG002  # for others
        """Return `values` with everything in them that spans the ranks whole, on rank 0 at least. A collective, on the same values.

        Objects in `unchanged` hold nothing new and are not looked through.
        """
        return list(values)

    def collect(self, step: int, limit: timedelta) -> bool:  # noqa: ARG002  # for others
        """Without a collective, where the ranks come to no common end: let rank 0 have what others alone have, as far as they tell of it.

        Every rank calls it, also after a common end, where nothing is left to do.

        Parameters
        ----------
        step : int
            The last one. What is of another one is not taken.
        limit : timedelta
            Time for the others.

        Returns
        -------
        bool
            Whether rank 0 has all of it, or nobody needs it.
        """
        return True

    def advise(self) -> None:
        """Tell the user what could be better, after a cell without an error."""

    # -- for snapshots -----------------------------------------------------------------------------------------------

    @property
    def in_step(self) -> bool:
        """Whether the cell is between a model's call and the backward pass: its graph cannot be saved."""
        return False

    @property
    def is_replicated(self) -> bool:
        """Whether parameters, and what optimizers keep, are the same on all ranks but for what is `apart`: then one copies for all."""
        return False

    @property
    def is_put_together(self) -> bool:
        """Whether what optimizers train is in parts on the ranks, and put together in the files of a snapshot."""
        return False

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see what objects hold as it is on this rank, without a collective, until the end of the ``with`` block."""
        return nullcontext()

    def full_tensors(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return tensors that span the ranks as wholes. A collective."""
        return tensors

    def apart(self) -> Apart:
        """Return what one rank alone has, as far as this one knows of it."""
        return NOTHING_APART

    def put_together(self, all_come: Callable[[], bool]) -> AbstractContextManager[Apart | None]:  # noqa: ARG002  # for others
        """Let what is on one rank alone have something that stands for it on all others, until the end of the ``with`` block.

        Parameters
        ----------
        all_come : callable
            Says whether all ranks are at this place, as they are to exchange something there. A collective.

        Returns
        -------
        Apart, optional
            ``None`` where the ranks are not at one place.
        """
        return nullcontext(NOTHING_APART)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on from here has to know besides the cell's objects: the same on all ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`; the cell's objects have been given all that they had."""

    def rng_state(self) -> Any:
        """Return the states of the rank's own random streams."""
        return None

    def set_rng_state(self, state: Any) -> None:
        """Go on from a :meth:`rng_state` of this rank."""


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
