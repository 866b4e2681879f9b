"""Options of a cluster: how many engines, on what, and who starts them. They validate themselves."""

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
    """A host of ``--hosts``: its `name` for ssh, and how many engines it is to have, by default as many as suit it."""

    name: str
    num_engines: int | None = None

    def __post_init__(self) -> None:
        # What begins with a hyphen would be an option of ssh.
        if not re.fullmatch(r"(?!-)[\w.@-]+", self.name):
            raise UsageError(f"--hosts: {self.name!r} is not a host name; give names as ssh takes them, such as --hosts a:2,me@b:2.")
        if self.num_engines is not None and self.num_engines < 1:
            raise UsageError(f"--hosts {self.name}:{self.num_engines}: a host has at least one engine, or leave it out.")


_OF_JOBS = ("--nodes", "--cpus-per-node", "--gpus-per-node", "--mem", "--time", "--partition", "--account")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The job that a scheduler is asked for.

    Attributes
    ----------
    nodes : int, optional
        Hosts, each with as many engines; by default one, or all of an allocation.
    cpus, gpus : int, optional
        Of each node; by default one core for each engine, and what the scheduler gives.
    mem : str, optional
        Memory of each node, such as ``64G``; by default what the scheduler gives.
    time : str, optional
        Minutes, ``H:MM:SS`` or ``D-H:MM:SS``.
    partition, account : str, optional
        As the scheduler takes them; others than Slurm say queue.
    config : str, optional
        Path of a file with lines for the scheduler (``#SBATCH …``) and commands that come before the engines (``module load …``);
        for Kubernetes with a part of a Job.
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
            # They go into a script as they are.
            if (value := getattr(self, option)) is not None and not re.fullmatch(r"[\w.:,@+-]+", value):
                raise UsageError(f"--{option} {value}: the scheduler's own words have no such signs.")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """What a cluster of engines is made of.

    Attributes
    ----------
    num_engines : int, optional
        Engines to start; by default one per GPU, or on a machine without GPUs one per two cores and at least two. Where they share GPUs
        at least two.
    device : {"auto", "cpu", "cuda"}
        What the engines compute on; ``auto`` takes GPUs where there are any.
    devices : {"exclusive", "shared"}
        Whether each engine has a GPU of its own, or several may have one together: to try a cell on more engines than there are GPUs.
    start_timeout : timedelta
        Time after which a cluster that has not come up is an error.
    force : bool
        Whether so many engines are started although the machine has too few cores or too little memory for them.
    launcher : str, optional
        Name of what starts them, in upper or lower case: ``local``, ``ssh``, ``mpi``, ``slurm``, ``pbs``, ``lsf``, ``sge``,
        ``htcondor``, ``kubernetes``, ``connect``, or what another package brings; by default what runs, or else local, with `hosts` ssh,
        and with `connect` or `profile` connect.
    hosts : tuple of HostSpec
        The hosts that they are on; by default this one.
    remote_python : str, optional
        Path of the Python there; by default that of this process.
    job : JobOptions
        What a scheduler is asked for, where one starts them.
    connect, profile : str, optional
        Path of the client's connection file, or the name of the profile, of an ipyparallel cluster beside whose engines they are.
    part : (int, int)
        Which of how many equal parts of the machine's GPUs and cores it may have, counted from 0: clusters beside each other have one each.
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
        """What says which hosts the engines are on, by the names of attributes."""
        return {name: getattr(self, name) for name in ("launcher", "hosts", "remote_python", "job", "connect", "profile")}
