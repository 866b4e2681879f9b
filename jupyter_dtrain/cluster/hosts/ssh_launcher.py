"""Launcher over SSH: one login per host, in parallel, without prompts that nobody could answer."""

from __future__ import annotations

import os
import shlex
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

from ...cluster_options import ClusterOptions, HostSpec
from ...errors import ClusterError, UsageError
from ..abstract_launcher import num_lanes_of
from ..base import Progress
from .agent_launcher import AgentLauncher, Agents, agent_command, agent_python
from .agent_link import ProcessLink
from .remote_host import RemoteHost

HERE = ("localhost", "127.0.0.1")
"""Names of this host, which needs no login."""
CONNECT = timedelta(seconds=5)
"""Time for a host to answer at its SSH port."""
AT_ONCE = 8
"""Parallel logins: an SSH server drops more of them."""
_LOGINS = threading.BoundedSemaphore(AT_ONCE)
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "AddressFamily=inet", "-o", f"ConnectTimeout={CONNECT.seconds}", "-o", "LogLevel=ERROR")


class SshLauncher(AgentLauncher):
    """Start an agent on each host of ``--hosts``."""

    has_lanes = True

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options without hosts, or that these cannot have yet."""
        if not options.hosts:
            raise UsageError(
                "--launcher ssh needs --hosts, such as --hosts a:2,b:2: the hosts' names for ssh, and how many engines on each."
            )
        super().check_cluster(options)
        if options.num_engines is not None:
            raise UsageError(
                f"--engines {options.num_engines}: on several hosts, --hosts says how many engines there are, as in --hosts a:2,b:2."
            )

    def lanes(self, options: ClusterOptions, *, engines_per_lane: int, at_most: int) -> list[ClusterOptions]:
        """Return the options of clusters on adjacent engines: several on one host, or one over several hosts."""
        self.check_cluster(options)
        if not all(host.num_engines for host in options.hosts):
            raise UsageError("--vary: say how many engines each host is to have, as in --hosts a:2,b:2.")
        places = [host.name for host in options.hosts for _ in range(host.num_engines or 0)]
        count = num_lanes_of(len(places), engines_per_lane, at_most)
        lanes = [Counter(places[lane * engines_per_lane :][:engines_per_lane]) for lane in range(count)]
        beside = {name: [lane for lane, hosts in enumerate(lanes) if name in hosts] for name in places}

        def of(lane: int) -> ClusterOptions:
            fullest = max(lanes[lane], key=lambda name: len(beside[name]))
            hosts = tuple(HostSpec(name=name, num_engines=number) for name, number in lanes[lane].items())
            return replace(options, hosts=hosts, force=True, part=(beside[fullest].index(lane), len(beside[fullest])))

        return [of(lane) for lane in range(count)]

    def try_agents(self, options: ClusterOptions, tell: Progress) -> Agents:
        """Log in to all hosts in parallel."""
        tell(f"logging in to {', '.join(host.name for host in options.hosts)}")
        python = agent_python(options)

        def dial(name: str) -> RemoteHost:
            return RemoteHost(name, ProcessLink(*_command(name, python)), python=python)

        def attempt(spec: HostSpec) -> tuple[RemoteHost, HostSpec, str]:
            try:
                with _LOGINS:
                    host = dial(spec.name)
                    host.wait_up()
            except ClusterError as error:
                return host, spec, str(error)
            return host, spec, ""

        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            attempts = pool.map(attempt, options.hosts)
            import ipyparallel  # noqa: F401  # meanwhile, as it is needed next

            found = list(attempts)
        for host, _, error in found:
            if error:
                host.end()
        up = [(host, spec.num_engines) for host, spec, error in found if not error]
        agents = Agents([host for host, _ in up], [number for _, number in up], [error for *_, error in found if error])
        agents.redial = lambda lost: dial(lost.name)
        return agents


def _command(name: str, python: str) -> tuple[list[str], dict[str, str] | None]:
    agent = agent_command(python)
    if name in HERE:  # SSH_CONNECTION would name an address outside the cluster
        return agent, {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
    return [*SSH, "--", name, shlex.join(["exec", *agent])], None
