"""Options of a cluster, which validate themselves: how many engines, on which devices and hosts, and who starts them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from .errors import UsageError

DeviceKind = Literal["auto", "cpu", "cuda"]
Devices = Literal["exclusive", "shared"]


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """A host of ``--hosts``: its `name` for ssh, and its number of engines, by default as many as suit it."""

    name: str
    num_engines: int | None = None

    def __post_init__(self) -> None:
        # ssh would take a name that begins with a hyphen for an option.
        if not re.fullmatch(r"(?!-)[\w.@-]+", self.name):
            raise UsageError(f"--hosts: {self.name!r} is not a host name; give names as ssh takes them, such as --hosts a:2,me@b:2.")
        if self.num_engines is not None and self.num_engines < 1:
            raise UsageError(f"--hosts {self.name}:{self.num_engines}: a host has at least one engine, or leave it out.")


_OF_JOBS = ("--nodes", "--cpus-per-node", "--gpus-per-node", "--mem", "--time", "--partition", "--account")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The job to request from a scheduler.

    Attributes
    ----------
    nodes : int, optional
        Number of hosts, each with equally many engines; by default one, or all of an allocation.
    cpus, gpus : int, optional
        Per node; by default one core for each engine, and the scheduler's number of GPUs.
    mem : str, optional
        Memory per node, such as ``64G``; by default the scheduler's.
    time : str, optional
        Time limit in minutes, as ``H:MM:SS`` or as ``D-H:MM:SS``.
    partition, account : str, optional
        The scheduler's names; schedulers other than Slurm call a partition a queue.
    config : str, optional
        Path of a file with lines for the scheduler (``#SBATCH …``) and commands to run before the engines (``module load …``); for
        Kubernetes with a part of a Job.
    """

    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    mem: str | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    config: str | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None and self.nodes < 1:
            raise UsageError(f"--nodes {self.nodes}: a job has at least one node.")
        for option in ("cpus", "gpus"):
            if (number := getattr(self, option)) is not None and number < 1:
                raise UsageError(f"--{option}-per-node {number}: ask for at least one on each node, or leave it out.")
        if self.mem is not None and not re.fullmatch(r"[1-9]\d*[KMGT]", self.mem):
            raise UsageError(f"--mem {self.mem}: give a number and K, M, G or T, as in 64G.")
        for option in ("time", "partition", "account"):
            # They are inserted into a script.
            if (value := getattr(self, option)) is not None and not re.fullmatch(r"[\w.:,@+-]+", value):
                raise UsageError(f"--{option} {value}: the scheduler's own words have no such signs.")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Description of a cluster of engines.

    Attributes
    ----------
    num_engines : int, optional
        Engines to start; by default one per GPU, or without GPUs one per two cores and at least two. Engines that share GPUs are at
        least two.
    device : {"auto", "cpu", "cuda"}
        Device of the engines; ``auto`` uses GPUs if there are any.
    devices : {"exclusive", "shared"}
        Whether each engine has its own GPU, or several may share one: to try a cell on more engines than there are GPUs.
    start_timeout : timedelta
        Time after which a cluster that has not started is an error.
    force : bool
        Whether to start the engines even if the machine has too few cores or too little memory for them.
    launcher : str, optional
        Name of the launcher, case-insensitive: ``local``, ``ssh``, ``mpi``, ``slurm``, ``pbs``, ``lsf``, ``sge``, ``htcondor``,
        ``kubernetes``, ``connect``, or that of another package; by default that of a running cluster, or else local, with `hosts` ssh,
        and with `connect` or `profile` connect.
    hosts : tuple of HostSpec
        Hosts of the engines; by default this one.
    remote_python : str, optional
        Path of Python on the hosts; by default that of this process.
    job : JobOptions
        Job to request, if the launcher uses a scheduler.
    connect, profile : str, optional
        Path of the client's connection file, or name of the profile, of an ipyparallel cluster beside whose engines the engines run.
    part : (int, int)
        Index, from 0, and number of equal parts of the machine's GPUs and cores: parallel clusters have one part each.
    """

    num_engines: int | None = None
    device: DeviceKind = "auto"
    devices: Devices = "exclusive"
    start_timeout: timedelta = timedelta(seconds=120)
    force: bool = False
    launcher: str | None = None
    hosts: tuple[HostSpec, ...] = ()
    remote_python: str | None = None
    job: JobOptions = JobOptions()
    connect: str | None = None
    profile: str | None = None
    part: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        if self.hosts and (self.launcher or "").lower() == "local":
            raise UsageError("--hosts and --launcher local: omit one of them.")
        if self.job != JobOptions() and (self.hosts or self.launcher in (None, "local")):
            raise UsageError(f"{', '.join(_OF_JOBS)} and --launcher-config are for a scheduler: add --launcher slurm, or another.")
        joins = [f"--{name}" for name in ("connect", "profile") if getattr(self, name) is not None]
        if joins and (len(joins) > 1 or self.hosts or (self.launcher or "connect").lower() != "connect"):
            others = "the other" if len(joins) > 1 else "--hosts and --launcher"
            raise UsageError(f"{' and '.join(joins)} name{'' if len(joins) > 1 else 's'} a cluster that runs: omit {others}.")
        if self.launcher is None and (self.hosts or joins):
            object.__setattr__(self, "launcher", "connect" if joins else "ssh")
        if self.launcher is not None:
            object.__setattr__(self, "launcher", self.launcher.lower())
        if self.remote_python is not None and not self.hosts and self.launcher in (None, "local"):
            raise UsageError("--remote-python needs --hosts or --launcher: it names the Python to use there.")
        if self.num_engines is not None and self.num_engines < 1:
            raise UsageError(f"--engines {self.num_engines}: a cluster has at least one engine; give a number from 1 up.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"--device {self.device}: choose auto, cpu or cuda.")
        if self.devices not in get_args(Devices):
            meant = f" `--engines {self.devices}` says how many there are." if self.devices.isdecimal() else ""
            raise UsageError(f"--devices {self.devices}: choose {' or '.join(get_args(Devices))}.{meant}")

    @property
    def where(self) -> dict[str, Any]:
        """The options that determine the hosts of the engines, by attribute name."""
        return {name: getattr(self, name) for name in ("launcher", "hosts", "remote_python", "job", "connect", "profile")}
