"""Base class of launchers over several hosts: each starts agents in its own way, and all start engines below agents alike."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from ...options import RunOptions
from ...strategies import Feature, find
from ..abstract_launcher import Launcher
from ..base import Cluster, Progress
from ..devices import DevicePlan
from . import host_agent
from .host_checks import findings_of
from .host_cluster import HostCluster
from .remote_host import RemoteHost
from .returning_hosts import Redial


@dataclass
class Agents:
    """Hosts with running agents, and the number of engines for each.

    Attributes
    ----------
    hosts : list of RemoteHost
    num_engines : list of int or None
        Per host; ``None``: as many as suit it.
    errors : list of str
        Why other hosts have no agent, as sentences that begin with the host's name.
    release : callable
        Releases what the agents ran in, such as a scheduler's job; called once they have ended.
    again : callable, optional
        If all hosts are lost, waits for new agents and returns their hosts; ``None``: there will be none.
    redial : callable, optional
        Starts an agent again on a host that was lost; ``None``: not supported.
    """

    hosts: list[RemoteHost]
    num_engines: list[int | None]
    errors: list[str] = field(default_factory=list)
    release: Callable[[], None] = lambda: None
    again: Callable[[Progress], list[RemoteHost]] | None = None
    redial: Redial | None = None

    def end(self) -> None:
        """End the agents."""
        for host in self.hosts:
            host.begin_end()
        for host in self.hosts:
            host.end()
        self.release()


class AgentLauncher(Launcher):
    """Start an agent on each host, and engines below these.

    Attributes
    ----------
    has_lanes : bool
        Whether hosts can be divided between parallel clusters.
    """

    hosts_say_how_many = True
    has_lanes = False

    def check(self, options: RunOptions) -> None:
        """Raise a `UsageError` for options that do not work on several hosts yet."""
        asked = {
            "--vary": bool(options.vary) and not self.has_lanes,
            f"--strategy {options.strategy}": Feature.HOSTS not in find(options.strategy).supports,
        }
        for option, is_given in asked.items():
            if is_given:
                raise UsageError(f"{option} does not work on several hosts yet. Remove it, or use `--launcher local`.")
        numbers = [host.num_engines or 0 for host in options.cluster.hosts]
        if options.mesh is not None and numbers and (not all(numbers) or sum(numbers) != options.mesh.num_engines):
            has = f"the hosts have {sum(numbers)}" if all(numbers) else "some hosts have no number"
            raise UsageError(
                f"--mesh {options.mesh} needs {options.mesh.num_engines} engines, but {has}. Set the numbers, as in --hosts a:2,b:2."
            )
        if options.elastic is not None and all(numbers) and numbers and sum(numbers) != options.elastic[1]:
            least, most = options.elastic
            raise UsageError(f"--elastic {least}:{most}: the hosts have {sum(numbers)} engines; write --elastic {least}:{sum(numbers)}.")

    def plan(self, options: ClusterOptions) -> list[DevicePlan]:
        """Return no plan: each host's agent makes its own."""
        self.check_cluster(options)
        return []

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options that these hosts cannot have yet, or that name no hosts."""
        self.check_device(options)

    def check_device(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for GPUs."""
        if options.device == "cuda":
            raise UsageError("--device cuda does not work on several hosts yet. Remove it: engines compute on CPUs there.")

    @abstractmethod
    def try_agents(self, options: ClusterOptions, tell: Progress) -> Agents:
        """Start the agents; those that do not come up are in the `errors` of the result."""

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Start a cluster and wait until all engines answer."""
        self.check_cluster(options)
        agents = self.try_agents(options, on_progress or (lambda _sentence: None))
        try:
            if agents.errors:
                raise ClusterError(" ".join(agents.errors))
            address = address_of_notebook(agents.hosts)
            if problems := [finding.sentence for finding in findings_of(agents.hosts, address) if finding.is_fatal]:
                raise ClusterError(" ".join(problems))
            plans = _plans(agents, options)
            cluster = HostCluster.start_on(
                agents.hosts, plans, address, limit=options.start_timeout, on_progress=on_progress, again=agents.again, redial=agents.redial
            )
        except BaseException:  # an interrupt as well
            agents.end()
            raise
        cluster.release = agents.release
        return cluster


def agent_python(options: ClusterOptions) -> str:
    """Return the Python that agents run with."""
    return options.remote_python or sys.executable


def agent_command(python: str) -> list[str]:
    """Return the command that starts an agent."""
    return [python, "-m", host_agent.__name__]


def address_of_notebook(hosts: Sequence[RemoteHost]) -> str:
    """Return this host's address as the others reach it, and set it as the address of a host that is this one.

    Raises
    ------
    ClusterError
        The hosts reach this one by different addresses.
    """
    seen = {host.facts["notebook"]: host.name for host in hosts if host.facts["notebook"] and not _is_loopback(host.facts["address"])}
    if len(seen) > 1:
        told = ", ".join(f"{name} as {address}" for address, name in seen.items())
        raise ClusterError(f"The hosts reach this one at different addresses ({told}). Use hosts of one network.")
    address = next(iter(seen), "127.0.0.1")
    for host in hosts:
        if not host.facts["address"] or _is_loopback(host.facts["address"]):  # this host
            host.facts["address"] = address
    return address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _plans(agents: Agents, options: ClusterOptions) -> list[tuple[RemoteHost, DevicePlan]]:
    found: list[tuple[RemoteHost, DevicePlan]] = []
    for host, number in zip(agents.hosts, agents.num_engines, strict=True):
        told = host.ask("plan", num_engines=number, device="cpu", devices=options.devices, force=options.force, part=options.part)
        for plan in told["plans"]:
            found.append((host, replace(DevicePlan(**plan), rank=len(found))))
    return found
