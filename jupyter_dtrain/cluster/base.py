"""What a run asks of a cluster, whoever starts its engines and wherever they are.

A `Cluster` is engines in rank order that can be reached, watched and replaced. A `Launcher` (`abstract_launcher.py`) starts one, and is
found by its name. Below them `abstract_processes.py` has the processes of one host, by name. `local.py` and `guarded_processes.py`
implement them for the kernel's own machine. Nothing above this folder knows a pid, or a file that only one host has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..errors import UsageError
from .endpoint import Endpoint
from .engine_files import EngineFiles

if TYPE_CHECKING:
    from ..protocol import EngineInfo
    from .devices import DevicePlan

Progress = Callable[[str], None]
"""Gets a short sentence about what is going on."""


class Cluster(ABC):
    """Engines in rank order, and a controller through which they are reached.

    Attributes
    ----------
    client : ipyparallel.Client
        The connection to the engines.
    spans_hosts : bool
        Whether engines are on several hosts: what lies in `blob_dir` is then sent to each and fetched from each.
    can_be_inherited : bool
        Whether another cluster can go on with what its engines have left.
    """

    client: Any
    spans_hosts = False
    can_be_inherited = True

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def engines(self) -> list[EngineInfo]:
        """The engines in rank order."""

    @property
    @abstractmethod
    def engine_ids(self) -> list[int]:
        """The ids that ipyparallel knows the engines by, in rank order."""

    @property
    @abstractmethod
    def device_plans(self) -> list[DevicePlan]:
        """What each rank computes on."""

    @property
    @abstractmethod
    def blob_dir(self) -> Path:
        """Where the engines look for large buffers and leave their snapshots."""

    @property
    def files(self) -> EngineFiles:
        """What lies there: sent to hosts and fetched from them, where there are several."""
        return EngineFiles(self.blob_dir)

    @property
    @abstractmethod
    def has_folders(self) -> bool:
        """Whether that is there: systems clean their places for temporary files and shared memory at times."""

    @abstractmethod
    def rendezvous_endpoint(self) -> Endpoint:
        """Return a place where the ranks of one generation meet, which none before has used."""

    @property
    def lost_hosts(self) -> list[str]:
        """The hosts that engines were to be on and cannot be any more."""
        return []

    def news_of_hosts(self) -> list[str]:
        """Return what there is to tell of those, since the last call."""
        return []

    def ranks_of_lost_hosts(self) -> list[int]:
        """Return the ranks whose engines were on hosts that are lost, and are nowhere else yet."""
        return []

    # -- how it is ---------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def controller_alive(self) -> bool:
        """Whether engines can be reached at all."""

    @property
    @abstractmethod
    def unreachable(self) -> str:
        """Why engines cannot be reached at all; empty where they can be."""

    @property
    @abstractmethod
    def warm(self) -> bool:
        """Whether every engine has imported torch; if not, a cell waits for that."""

    @property
    def alive(self) -> bool:
        """Whether the controller and every engine are running."""
        return bool(self.engine_ids) and self.controller_alive and not self.dead_ranks()

    def dead_ranks(self) -> list[int]:
        """Return the ranks whose engine has ended, or cannot be reached any more because the controller has."""
        return [rank for rank in range(len(self.engine_ids)) if not self.controller_alive or self.has_ended(rank)]

    @abstractmethod
    def has_ended(self, rank: int) -> bool:
        """Return whether the process of the engine of `rank` has ended, whether it could be reached or not."""

    @abstractmethod
    def missing_ranks(self) -> list[int]:
        """Return the ranks whose engine has ended, has not come up, or was to take a place and has not."""

    @abstractmethod
    def exit_status(self, rank: int | None) -> int | None:
        """Return with what status the engine of `rank` (``None``: the controller) has ended, as far as is known; negative: the signal."""

    @property
    def is_leaving(self) -> bool:
        """Whether a scheduler takes hosts away, which wait until :meth:`let_go`."""
        return False

    def let_go(self) -> None:  # noqa: B027  # no scheduler has given this host
        """Let hosts that are leaving end what runs there."""

    def wait_for_hosts(self, on_progress: Progress) -> bool:  # noqa: ARG002  # there is one
        """Wait for other hosts where all are lost and a scheduler gives others; return whether there are.

        Raises
        ------
        ClusterError
            They do not come.
        """
        return False

    def why_lost(self, rank: int) -> str:  # noqa: ARG002  # of one host there is nothing to say
        """Return why the engine of `rank` has ended where that is not its own end; empty where it is, or nobody knows."""
        return ""

    @abstractmethod
    def last_words(self, rank: int) -> str:
        """Return what the engine of `rank` wrote last, less what engines write as a matter of routine."""

    @abstractmethod
    def cpu_time(self, rank: int) -> float | None:
        """Return the seconds that the engine of `rank` has computed, ``None`` if it is gone."""

    @abstractmethod
    def is_stopped(self, rank: int) -> bool:
        """Return whether the process of the engine of `rank` is stopped, as by a SIGSTOP."""

    # -- what can be done -------------------------------------------------------------------------------------------

    @abstractmethod
    def wait_warm(self, limit: timedelta) -> bool:
        """Wait until the engines have imported torch, at most `limit`, or one is dead or stopped; return whether all have."""

    @abstractmethod
    def end_stopped_guard(self) -> None:
        """Let what tells of deaths, and is stopped itself, have ended."""

    @abstractmethod
    def send_signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to the engines of `ranks` (all by default): works for one that answers no messages any more."""

    @abstractmethod
    def restart(self, ranks: Sequence[int], *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """End the engines of `ranks` and put others in their place; a `ClusterError` where these do not come up."""

    @abstractmethod
    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:
        """Where it cannot be reached any more, start another controller and other engines that find what the old ones have left.

        Returns
        -------
        bool
            Whether that could be; if not, another cluster has to `inherit` from this one.

        Raises
        ------
        ClusterError
            They did not come up. It cannot be reached still.
        """

    def at_work(self) -> AbstractContextManager[None]:
        """Know that a cell runs on the engines, until the end of the ``with`` block."""
        return nullcontext()

    @abstractmethod
    def prepare_spare(self) -> bool:
        """See to it that there are engines in reserve; return whether these are ready. Does not wait; to be called again and again."""

    @abstractmethod
    def drop(self, ranks: Sequence[int]) -> None:
        """Do without the engines of `ranks`, for which no other has come up; those behind them move up."""

    @abstractmethod
    def take_back(self) -> int:
        """Let engines in reserve be more ranks, the last ones; return how many these are."""

    def start_dask(self, number: int, *, limit: timedelta, on_progress: Progress | None = None) -> None:  # noqa: ARG002
        """Start workers of Dask beside the engines, and let them compute the notebook's collections."""
        raise UsageError("--dask-workers needs engines on this machine. Make a `Client` of a cluster that all hosts reach.")

    @abstractmethod
    def inherit(self, old: Self) -> None:
        """Take the place of `old`: what it has dropped can be taken back here."""

    @abstractmethod
    def stop(self) -> None:
        """End every process of the cluster and remove its folders. Calling it again does nothing."""
