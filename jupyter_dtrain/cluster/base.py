"""The interface of clusters that runs use, independent of the launcher and of where the engines are.

A `Cluster` is a set of engines in rank order that can be reached, watched and replaced. A `Launcher` (`abstract_launcher.py`) starts it.
`abstract_processes.py` is the interface to the processes of one host. `local.py` and `guarded_processes.py` implement both for the
kernel's own machine. Nothing above this folder uses a pid, or a file that only one host has.
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
"""Takes a short progress message."""


class Cluster(ABC):
    """Engines in rank order, and the controller through which they are reached.

    Attributes
    ----------
    client : ipyparallel.Client
        The connection to the engines.
    spans_hosts : bool
        Whether engines are on several hosts, so that files in `blob_dir` must be sent to and fetched from each.
    can_be_inherited : bool
        Whether another cluster can take over the files of its engines.
    """

    client: Any
    spans_hosts = False
    can_be_inherited = True

    # -- contents ----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def engines(self) -> list[EngineInfo]:
        """The engines in rank order."""

    @property
    @abstractmethod
    def engine_ids(self) -> list[int]:
        """Ids of the engines in ipyparallel, in rank order."""

    @property
    @abstractmethod
    def device_plans(self) -> list[DevicePlan]:
        """The device of each rank."""

    @property
    @abstractmethod
    def blob_dir(self) -> Path:
        """Folder in which engines find large buffers and write snapshots."""

    @property
    def files(self) -> EngineFiles:
        """Access to the files in `blob_dir`, on all hosts."""
        return EngineFiles(self.blob_dir)

    @property
    @abstractmethod
    def has_folders(self) -> bool:
        """Whether the folders exist: systems sometimes clean up temporary files and shared memory."""

    @abstractmethod
    def rendezvous_endpoint(self) -> Endpoint:
        """Return a rendezvous for the ranks of one generation that no other generation has used."""

    @property
    def lost_hosts(self) -> list[str]:
        """Hosts that were lost."""
        return []

    def news_of_hosts(self) -> list[str]:
        """Return new messages about lost hosts since the last call."""
        return []

    def ranks_of_lost_hosts(self) -> list[int]:
        """Return the ranks whose engines were on lost hosts and were not replaced yet."""
        return []

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def controller_alive(self) -> bool:
        """Whether the controller is running, so that engines can be reached."""

    @property
    @abstractmethod
    def unreachable(self) -> str:
        """Why engines cannot be reached; empty if they can."""

    @property
    @abstractmethod
    def warm(self) -> bool:
        """Whether every engine has imported torch; if not, a cell waits for that."""

    @property
    def alive(self) -> bool:
        """Whether the controller and every engine are running."""
        return bool(self.engine_ids) and self.controller_alive and not self.dead_ranks()

    def dead_ranks(self) -> list[int]:
        """Return the ranks whose engine has ended, or all if the controller has."""
        return [rank for rank in range(len(self.engine_ids)) if not self.controller_alive or self.has_ended(rank)]

    @abstractmethod
    def has_ended(self, rank: int) -> bool:
        """Return whether the process of the engine of `rank` has ended, independent of the controller."""

    @abstractmethod
    def missing_ranks(self) -> list[int]:
        """Return the ranks without an engine: it has ended, has not come up, or was not replaced."""

    @abstractmethod
    def exit_status(self, rank: int | None) -> int | None:
        """Return the exit status of the engine of `rank` (``None``: of the controller) if known; negative: the signal."""

    @property
    def is_leaving(self) -> bool:
        """Whether a scheduler is taking hosts away; these wait for :meth:`let_go`."""
        return False

    def let_go(self) -> None:  # noqa: B027  # no scheduler manages this host
        """Let leaving hosts end their processes."""

    def wait_for_hosts(self, on_progress: Progress) -> bool:  # noqa: ARG002  # there is one host
        """If all hosts are lost and the scheduler provides new ones, wait for these; return whether there are new ones.

        Raises
        ------
        ClusterError
            They did not come.
        """
        return False

    def why_lost(self, rank: int) -> str:  # noqa: ARG002  # local engines have no other reasons
        """Return why the engine of `rank` was lost, if it did not end by itself; empty if it did, or if unknown."""
        return ""

    @abstractmethod
    def last_words(self, rank: int) -> str:
        """Return the last output of the engine of `rank`, without routine log lines."""

    @abstractmethod
    def cpu_time(self, rank: int) -> float | None:
        """Return the CPU seconds of the engine of `rank`, ``None`` if it is gone."""

    @abstractmethod
    def is_stopped(self, rank: int) -> bool:
        """Return whether the process of the engine of `rank` is stopped (SIGSTOP)."""

    # -- actions -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def wait_warm(self, limit: timedelta) -> bool:
        """Wait at most `limit` until all engines have imported torch, or one is dead or stopped; return whether all have."""

    @abstractmethod
    def end_stopped_guard(self) -> None:
        """Kill a guard that stays stopped (SIGSTOP), as it could not report deaths."""

    @abstractmethod
    def send_signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to the engines of `ranks` (all by default), also to an engine that no longer answers messages."""

    @abstractmethod
    def restart(self, ranks: Sequence[int], *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """Kill and replace the engines of `ranks`; raise a `ClusterError` if the new ones do not come up."""

    @abstractmethod
    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:
        """If the controller is gone, start a new one and new engines that find the files of the old ones.

        Returns
        -------
        bool
            Whether this cluster can do that; if not, another one has to `inherit` from it.

        Raises
        ------
        ClusterError
            They did not come up; the cluster still cannot be reached.
        """

    def at_work(self) -> AbstractContextManager[None]:
        """Mark the engines as busy with a cell within the ``with`` block."""
        return nullcontext()

    @abstractmethod
    def prepare_spare(self) -> bool:
        """Start spare engines if there are none; return whether they are ready. Does not block; called repeatedly."""

    @abstractmethod
    def drop(self, ranks: Sequence[int]) -> None:
        """Remove the engines of `ranks`, which could not be replaced; higher ranks move up."""

    @abstractmethod
    def take_back(self) -> int:
        """Turn spare engines into additional ranks at the end; return how many."""

    def start_dask(self, number: int, *, limit: timedelta, on_progress: Progress | None = None) -> None:  # noqa: ARG002
        """Start Dask workers beside the engines, and make the notebook's collections compute on them."""
        raise UsageError(
            "--dask-workers needs engines on this machine. For several hosts, create a `Client` of a Dask cluster that all can reach."
        )

    @abstractmethod
    def inherit(self, old: Self) -> None:
        """Take the place of `old`, including engines that it has dropped and that can be taken back."""

    @abstractmethod
    def stop(self) -> None:
        """End every process of the cluster and remove its folders. Idempotent."""
