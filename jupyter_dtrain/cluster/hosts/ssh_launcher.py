"""Starts clusters over hosts that can be logged into by SSH: one login each, all at once, and no question that nobody could answer."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

from ...errors import ClusterError, UsageError
from ...options import ClusterOptions, HostSpec, RunOptions
from ..base import Cluster, Launcher, Progress
from ..devices import DevicePlan
from . import host_agent
from .checks import findings_of
from .host_cluster import HostCluster
from .remote_host import RemoteHost

HERE = ("localhost", "127.0.0.1")
"""Hosts that are this one, into which nobody has to log in."""
CONNECT = timedelta(seconds=5)
"""Time for a host to answer at its SSH port."""
AT_ONCE = 8
"""Logins at a time: an SSH server drops more of them."""
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "AddressFamily=inet", "-o", f"ConnectTimeout={CONNECT.seconds}", "-o", "LogLevel=ERROR")


class SshLauncher(Launcher):
    """Starts an agent on each host of ``--hosts``, and engines below these."""

    def check(self, options: RunOptions) -> None:
        """Refuse what runs on several hosts cannot do yet: here, and nowhere else."""
        asked = {
            "--detach": options.detach,
            "--vary": bool(options.vary),
            f"--strategy {options.strategy}": options.strategy != "auto",
            "--elastic": options.elastic is not None,
            "--best": options.best is not None,
            "--checkpoint-every": options.checkpoint_every is not None,
            "--balance auto": options.balance != "off",
        }
        for option, is_given in asked.items():
            if is_given:
                raise UsageError(f"{option} does not work on several hosts yet: leave it out, or run the cell with `--launcher local`.")

    def plan(self, options: ClusterOptions) -> list[DevicePlan]:
        """Return no plan: each host's agent makes its own."""
        check_options(options)
        return []

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Start a cluster and wait until all engines answer."""
        check_options(options)
        tell = on_progress or (lambda _sentence: None)
        hosts = agents_on(options, tell)
        try:
            address = address_of_notebook(hosts)
            if problems := [finding.sentence for finding in findings_of(hosts, address) if finding.is_fatal]:
                raise ClusterError(" ".join(problems))
            plans = _plans(hosts, options)
            return HostCluster.start_on(hosts, plans, address, limit=options.start_timeout, on_progress=on_progress)
        except BaseException:  # an interrupt as well
            end(hosts)
            raise


def check_options(options: ClusterOptions) -> None:
    """Refuse options that say of no hosts, or of what they cannot have yet."""
    if not options.hosts:
        raise UsageError("--launcher ssh needs --hosts, such as --hosts a:2,b:2: the hosts' names for ssh, and how many engines on each.")
    if options.device == "cuda":
        raise UsageError("--device cuda does not work on several hosts yet: engines compute on CPUs there.")
    if options.num_engines is not None:
        raise UsageError(
            f"--engines {options.num_engines}: on several hosts, --hosts says how many engines there are, as in --hosts a:2,b:2."
        )


def agents_on(options: ClusterOptions, tell: Progress) -> list[RemoteHost]:
    """Return the hosts, with an agent on each; a `ClusterError` says of each that has none why, and none is left."""
    hosts, errors = try_agents_on(options, tell)
    if errors:
        end(hosts)
        raise ClusterError(" ".join(errors))
    return hosts


def try_agents_on(options: ClusterOptions, tell: Progress) -> tuple[list[RemoteHost], list[str]]:
    """Return the hosts on which an agent has come up, and why it has not on others."""
    tell(f"logging in to {', '.join(host.name for host in options.hosts)}")
    python = options.remote_python or sys.executable

    def attempt(spec: HostSpec) -> tuple[RemoteHost, str]:
        command, environment = _command(spec.name, python)
        host = RemoteHost(spec.name, command, python=python, environment=environment)
        try:
            host.wait_up()
        except ClusterError as error:
            return host, str(error)
        return host, ""

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        found = list(pool.map(attempt, options.hosts))
    for host, error in found:
        if error:
            host.end()
    return [host for host, error in found if not error], [error for _, error in found if error]


def _command(name: str, python: str) -> tuple[list[str], dict[str, str] | None]:
    agent = [python, "-m", host_agent.__name__]
    if name in HERE:  # whoever has logged in to this host did so from an address that is none of the cluster's
        return agent, {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
    return [*SSH, "--", name, shlex.join(["exec", *agent])], None


def address_of_notebook(hosts: Sequence[RemoteHost]) -> str:
    """Return the address of this host that the others reach it by, after they were given theirs; a `ClusterError`: there is no one."""
    seen = {host.facts["notebook"]: host.name for host in hosts if host.facts["notebook"] and not _is_loopback(host.facts["address"])}
    if len(seen) > 1:
        told = ", ".join(f"{name} as {address}" for address, name in seen.items())
        raise ClusterError(f"The hosts reach this one by different addresses ({told}): use hosts of one network.")
    address = next(iter(seen), "127.0.0.1")
    for host in hosts:
        if not host.facts["address"] or _is_loopback(host.facts["address"]):  # it is this host
            host.facts["address"] = address
    return address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _plans(hosts: Sequence[RemoteHost], options: ClusterOptions) -> list[tuple[RemoteHost, DevicePlan]]:
    found: list[tuple[RemoteHost, DevicePlan]] = []
    for host, spec in zip(hosts, options.hosts, strict=True):
        told = host.ask("plan", num_engines=spec.num_engines, device="cpu", devices=options.devices, force=options.force)
        for plan in told["plans"]:
            found.append((host, replace(DevicePlan(**plan), rank=len(found))))
    return found


def end(hosts: Sequence[RemoteHost], done: Callable[[RemoteHost], object] = lambda host: host.end()) -> None:
    """Let the agents end."""
    for host in hosts:
        host.begin_end()
    for host in hosts:
        done(host)
