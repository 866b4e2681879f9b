"""Starts clusters over hosts that can be logged into by SSH: one login each, all at once, and no question that nobody could answer."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from ...cluster_options import ClusterOptions, HostSpec
from ...errors import ClusterError, UsageError
from ..base import Progress
from .agent_launcher import AgentLauncher, Agents, agent_command, agent_python
from .agent_link import ProcessLink
from .remote_host import RemoteHost

HERE = ("localhost", "127.0.0.1")
"""Hosts that are this one, into which nobody has to log in."""
CONNECT = timedelta(seconds=5)
"""Time for a host to answer at its SSH port."""
AT_ONCE = 8
"""Logins at a time: an SSH server drops more of them."""
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "AddressFamily=inet", "-o", f"ConnectTimeout={CONNECT.seconds}", "-o", "LogLevel=ERROR")


class SshLauncher(AgentLauncher):
    """Starts an agent on each host of ``--hosts``."""

    def check_cluster(self, options: ClusterOptions) -> None:
        """Refuse options that say of no hosts, or of what they cannot have yet."""
        if not options.hosts:
            raise UsageError(
                "--launcher ssh needs --hosts, such as --hosts a:2,b:2: the hosts' names for ssh, and how many engines on each."
            )
        super().check_cluster(options)
        if options.num_engines is not None:
            raise UsageError(
                f"--engines {options.num_engines}: on several hosts, --hosts says how many engines there are, as in --hosts a:2,b:2."
            )

    def try_agents(self, options: ClusterOptions, tell: Progress) -> Agents:
        """Log in to all hosts at once."""
        tell(f"logging in to {', '.join(host.name for host in options.hosts)}")
        python = agent_python(options)

        def dial(name: str) -> RemoteHost:
            return RemoteHost(name, ProcessLink(*_command(name, python)), python=python)

        def attempt(spec: HostSpec) -> tuple[RemoteHost, HostSpec, str]:
            host = dial(spec.name)
            try:
                host.wait_up()
            except ClusterError as error:
                return host, spec, str(error)
            return host, spec, ""

        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            found = list(pool.map(attempt, options.hosts))
        for host, _, error in found:
            if error:
                host.end()
        up = [(host, spec.num_engines) for host, spec, error in found if not error]
        agents = Agents([host for host, _ in up], [number for _, number in up], [error for *_, error in found if error])
        agents.redial = lambda lost: dial(lost.name)
        return agents


def _command(name: str, python: str) -> tuple[list[str], dict[str, str] | None]:
    agent = agent_command(python)
    if name in HERE:  # whoever has logged in to this host did so from an address that is none of the cluster's
        return agent, {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
    return [*SSH, "--", name, shlex.join(["exec", *agent])], None
