"""What a run asks of a cluster, whoever starts its engines and wherever they are.

Three seams, from the outside in: a `Launcher` starts clusters and is found by its name; a `Cluster` is engines in rank order that can be
reached, watched and replaced; `Processes` are those of one host, by name. `local.py` and `guarded_processes.py` implement them for the
kernel's own machine. Nothing above this folder knows a pid, or a file that only one host has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ..errors import UsageError

if TYPE_CHECKING:
    from ..cluster_options import ClusterOptions
    from ..options import RunOptions
    from ..protocol import EngineInfo
    from .devices import DevicePlan

Progress = Callable[[str], None]
"""Gets a short sentence about what is going on."""
StartMethod = Literal["exec", "template", "fork"]
"""How a process is started: ``guard.py`` explains each."""


class Endpoint(ABC):
    """Where the ranks of one generation meet: sent to them with their task.

    Attributes
    ----------
    spans_hosts : bool
        Whether they may be on several hosts: then they connect by the network alone, so that sums are the same wherever each of them is.
    """

    spans_hosts = False

    @abstractmethod
    def open(self, world_size: int, limit: timedelta) -> Any:
        """Return the ``torch.distributed.Store`` by which they meet, in which keys are waited for as long as `limit`."""


class Launcher(ABC):
    """Starts clusters of one kind. Made without arguments, from an entry point of the group ``jupyter_dtrain.launchers``.

    Attributes
    ----------
    hosts_say_how_many : bool
        Whether a cluster has as many engines as its hosts say, unless somebody asks for a number.
    """

    hosts_say_how_many = False

    def check(self, options: RunOptions) -> None:  # noqa: B027  # most can do all
        """Refuse, with a `UsageError`, what runs on clusters of this kind cannot do."""

    @abstractmethod
    def plan(self, options: ClusterOptions) -> list[DevicePlan]:
        """Return what each rank would compute on; starts nothing. A `UsageError` says what cannot be had."""

    def script(self, options: ClusterOptions) -> str:
        """Return the script that a scheduler is given; a `UsageError`: none is."""
        raise UsageError(f"--show-script: --launcher {options.launcher or 'local'} gives no script to any scheduler.")

    @abstractmethod
    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Start a cluster and wait until all engines answer.

        Parameters
        ----------
        options : ClusterOptions
            How many engines, on what, and how long to wait for them.
        on_progress : callable, optional
            Told what is going on, at least each second.

        Raises
        ------
        UsageError
            There are not the devices that `options` asks for.
        ClusterError
            The engines did not come up; nothing is left running.
        """


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
        """See to it that an engine is in reserve; return whether it is ready. Does not wait; to be called again and again."""

    @abstractmethod
    def drop(self, ranks: Sequence[int]) -> None:
        """Do without the engines of `ranks`, for which no other has come up; those behind them move up."""

    @abstractmethod
    def take_back(self) -> bool:
        """Let the engine in reserve be one more rank, the last one; return whether there is one that lives."""

    # -- files of `blob_dir`, by their names below it: where all engines share it there is nothing to do --------------

    def send_files(self, names: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> None:  # noqa: B027
        """Let all engines find files that are here; `on_progress` is given how many of how many bytes are sent."""

    def fetch_files(self, names: Sequence[str], rank: int) -> None:  # noqa: B027
        """Let files be here that the engine of `rank` has made; a `ClusterError`: they cannot be had."""

    def pass_file(self, name: str, *, source: int, target: int) -> None:  # noqa: B027
        """Let the engine of rank `target` find a file that the engine of rank `source` has made; a `ClusterError`: it cannot."""

    def find_files(self, names: Sequence[str]) -> list[str]:
        """Let files be here that any engine has made; return those that cannot be had."""
        return [name for name in names if not (self.blob_dir / name).exists()]

    def spread_files(self, names: Sequence[str]) -> bool:
        """Let all engines find files that any of them has made; return whether that can be."""
        return not self.find_files(names)

    def journal(self, path: Path, run_id: str) -> Path:  # noqa: ARG002  # of one host it is where it is
        """Return where rank 0 notes what a run does to files: `path`, if its host has that folder."""
        return path

    def remove_files(self, names: Sequence[str]) -> None:  # noqa: B027
        """Remove files where engines find them; names may be patterns."""

    def keep_files(self, names: Sequence[str]) -> None:  # noqa: B027
        """Remove buffers other than these where engines find them and this process does not."""

    @abstractmethod
    def inherit(self, old: Self) -> None:
        """Take the place of `old`: what it has dropped can be taken back here."""

    @abstractmethod
    def stop(self) -> None:
        """End every process of the cluster and remove its folders. Calling it again does nothing."""


class Processes(ABC):
    """The processes of a cluster on one host, by name. They end with the process that has made this object, whatever ends it.

    Attributes
    ----------
    pids : dict
        Pid of every process that was started.
    statuses : dict
        Exit status (negative: the signal) of every process that has ended.
    """

    pids: dict[str, int]
    statuses: dict[str, int]

    @property
    @abstractmethod
    def guard_pid(self) -> int:
        """Pid of what looks after them."""

    @property
    @abstractmethod
    def guard_alive(self) -> bool:
        """Whether that is running; when it is not, its processes are not either."""

    @abstractmethod
    def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, how: StartMethod = "exec") -> None:
        """Ask for a process; its pid appears in `pids`."""

    @abstractmethod
    def signal(self, name: str, number: int) -> None:
        """Send a signal to the process `name`; nothing happens if it is gone."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Drop what is known of the process `name`, which has ended."""

    @abstractmethod
    def cpu_time(self, name: str) -> float | None:
        """Return the seconds that the process `name` has computed, ``None`` if it is gone."""

    @abstractmethod
    def is_stopped(self, name: str) -> bool:
        """Return whether the process `name` is stopped, as by a SIGSTOP."""

    @abstractmethod
    def end_stopped_guard(self) -> None:
        """Let a guard that is stopped, as by a SIGSTOP, and does not go on have ended: it would tell of no death."""

    @abstractmethod
    def wait_change(self, limit: timedelta) -> None:
        """Wait until a process starts or ends, at most `limit`."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes and wait until they are gone. Calling it again does nothing."""


MakeProcesses = Callable[[Sequence[Path], Callable[[str, int], None]], Processes]
"""Makes `Processes`, given folders to remove at the end, and what to call with the name and the exit status of each that has ended."""
