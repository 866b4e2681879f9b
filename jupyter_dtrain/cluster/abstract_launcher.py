"""What starts clusters of one kind: the seam for schedulers and other ways to start engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..cluster_options import ClusterOptions
    from ..options import RunOptions
    from .base import Cluster, Progress
    from .devices import DevicePlan


def num_lanes_of(num_engines: int, engines_per_lane: int, at_most: int) -> int:
    """Return how many clusters of so many engines there are; a `UsageError`: not one."""
    if engines_per_lane > num_engines:
        raise UsageError(f"--engines-per-trial {engines_per_lane}: a trial cannot take more engines than there are, {num_engines}.")
    return min(at_most, num_engines // engines_per_lane)


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

    def lanes(self, options: ClusterOptions, *, engines_per_lane: int, at_most: int) -> list[ClusterOptions]:
        """Return those of clusters beside each other, as many as there are engines for; a `UsageError`: there are too few for one."""
        num_lanes = num_lanes_of(len(self.plan(options)), engines_per_lane, at_most)
        # All of them together have been found not to be too many.
        return [replace(options, num_engines=engines_per_lane, force=True, part=(part, num_lanes)) for part in range(num_lanes)]

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
