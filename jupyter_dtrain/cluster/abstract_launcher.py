"""The interface of launchers, which start clusters of one kind: locally, over SSH, or through a scheduler."""

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
    """Return how many clusters of `engines_per_lane` engines fit; raise a `UsageError` if none does."""
    if engines_per_lane > num_engines:
        raise UsageError(
            f"--engines-per-trial {engines_per_lane} exceeds the number of engines, {num_engines}. Use {num_engines} or fewer."
        )
    return min(at_most, num_engines // engines_per_lane)


class Launcher(ABC):
    """Start clusters of one kind. Instantiated without arguments, from an entry point of the group ``jupyter_dtrain.launchers``.

    Attributes
    ----------
    hosts_say_how_many : bool
        Whether the hosts determine the number of engines, unless the user asks for one.
    """

    hosts_say_how_many = False

    def check(self, options: RunOptions) -> None:  # noqa: B027  # most launchers can run everything
        """Raise a `UsageError` for options that runs on clusters of this kind cannot have."""

    @abstractmethod
    def plan(self, options: ClusterOptions) -> list[DevicePlan]:
        """Return the device of each rank without starting anything; raise a `UsageError` if the options cannot be had."""

    def lanes(self, options: ClusterOptions, *, engines_per_lane: int, at_most: int) -> list[ClusterOptions]:
        """Return the options of parallel clusters, as many as there are engines for; raise a `UsageError` if there are too few for one."""
        num_lanes = num_lanes_of(len(self.plan(options)), engines_per_lane, at_most)
        # `force`, as the total was checked by `plan`.
        return [replace(options, num_engines=engines_per_lane, force=True, part=(part, num_lanes)) for part in range(num_lanes)]

    def script(self, options: ClusterOptions) -> str:
        """Return the script for a scheduler; raise a `UsageError` if this launcher uses none."""
        raise UsageError(
            f"--show-script: --launcher {options.launcher or 'local'} submits no job, so there is no script. Remove --show-script, or use "
            "a scheduler, such as --launcher slurm."
        )

    @abstractmethod
    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Start a cluster and wait until all engines answer.

        Parameters
        ----------
        options : ClusterOptions
            Number of engines, their devices, and how long to wait for them.
        on_progress : callable, optional
            Takes a progress message, at least each second.

        Raises
        ------
        UsageError
            The devices that `options` ask for do not exist.
        ClusterError
            The engines did not come up; nothing is left running.
        """
