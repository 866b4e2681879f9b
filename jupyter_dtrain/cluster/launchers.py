"""Launchers by name: this package's own, and those of other packages through entry points, like ipyparallel's."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from ..cluster_options import ClusterOptions
from ..errors import UsageError
from ..system.entry_points import installed, load
from .abstract_launcher import Launcher
from .abstract_processes import Processes
from .base import Cluster, Progress
from .devices import DevicePlan, plan_devices
from .guarded_processes import GuardedProcesses
from .local import LocalCluster

GROUP = "jupyter_dtrain.launchers"
"""The group of entry points; each names a subclass of `Launcher`."""
SSH = "ssh"
"""Name of the SSH launcher."""
_OF_HOSTS = {
    SSH: ("ssh_launcher", "SshLauncher"),
    "slurm": ("slurm_launcher", "SlurmLauncher"),
    "pbs": ("pbs_launcher", "PbsLauncher"),
    "lsf": ("lsf_launcher", "LsfLauncher"),
    "sge": ("sge_launcher", "SgeLauncher"),
    "htcondor": ("htcondor_launcher", "HTCondorLauncher"),
    "kubernetes": ("kubernetes_launcher", "KubernetesLauncher"),
    "mpi": ("mpi_launcher", "MpiLauncher"),
    "connect": ("connect_launcher", "ConnectLauncher"),
}
LOCAL = "local"
"""Name of the local launcher, which is found without searching installed packages, as that is slow."""


class LocalLauncher(Launcher):
    """Start clusters on this machine. Subclasses can override :meth:`processes` to start the same processes in another way."""

    def plan(self, options: ClusterOptions) -> list[DevicePlan]:
        """Return the device of each rank."""
        return plan_devices(options)

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Start a cluster and wait until all engines answer."""
        return LocalCluster.start(options, on_progress=on_progress, processes=self.processes)

    def processes(self, folders: Sequence[Path], on_exit: Callable[[str, int], None]) -> Processes:
        """Return the object that starts and watches the processes of one cluster: see `GuardedProcesses`."""
        return GuardedProcesses(folders, on_exit=on_exit)


def find_launcher(name: str | None) -> Launcher:
    """Return a launcher by name, the local one for ``None``; raise a `UsageError` if it does not exist or cannot be used."""
    if name is None or name.lower() == LOCAL:
        return LocalLauncher()
    if name.lower() in _OF_HOSTS:
        module, launcher = _OF_HOSTS[name.lower()]
        made: Launcher = getattr(importlib.import_module(f".hosts.{module}", __package__), launcher)()
        return made
    found = installed(GROUP)
    point = found.get(name.lower())
    if point is None:
        known = sorted([LOCAL, *_OF_HOSTS, *found])
        near = difflib.get_close_matches(name.lower(), known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"--launcher {name}: no installed package has a launcher of that name; there {_are(known)}.{meant} "
            f"A package brings one with an entry point of the group `{GROUP}`."
        )
    return load(point, Launcher, what=f"--launcher {name}")  # type: ignore[type-abstract]  # one of its kinds


def _are(names: list[str]) -> str:
    return f"is {names[0]} only" if len(names) == 1 else f"are {', '.join(names)}"
