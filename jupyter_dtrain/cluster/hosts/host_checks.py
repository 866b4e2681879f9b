"""Checks of hosts before engines start there, for a cluster's start, which refuses fatal findings, and for ``%distribute doctor``."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ClusterError
from .host_facts import versions
from .remote_host import RemoteHost

SHARED_MEMORY = 1 << 29
"""Bytes of shared memory that should be free for buffers: containers often have 64 MiB."""
CLOCK = 2.0
"""Seconds that clocks may differ before file times become confusing."""
PORTS = "TCP at the ports of /proc/sys/net/ipv4/ip_local_port_range"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding about a host.

    Attributes
    ----------
    host, check : str
    found : str
        A sentence without its full stop.
    todo : str
        What to do about it; empty if nothing.
    is_fatal : bool
        Whether no cluster can start there.
    """

    host: str
    check: str
    found: str
    todo: str = ""
    is_fatal: bool = False

    @property
    def sentence(self) -> str:
        """The finding as one sentence."""
        return f"{self.host}: {self.found}: {self.todo}."


def findings_of(hosts: Sequence[RemoteHost], notebook: str, *, new: Sequence[RemoteHost] | None = None) -> list[Finding]:
    """Return the findings about hosts with agents; `notebook` is the address by which they shall reach this host.

    With `new`, the other hosts were checked before.
    """
    new = hosts if new is None else new
    found = [finding for host in new for finding in _of_one(host)]
    names: dict[str, str] = {}
    for host in hosts:
        address = host.facts["address"]
        if address in names:
            what = f"it is the same host as {names[address]}"
            found.append(Finding(host=host.name, check="names", found=what, todo="name each host once", is_fatal=True))
        names.setdefault(address, host.name)
    first = hosts[0]
    for host in new:
        if host.facts["processor"] != first.facts["processor"]:
            what = f"its processor is {host.facts['processor']}, and that of {first.name} {first.facts['processor']}"
            todo = "use hosts with the same processor, or accept that ranks may differ in the last digits"
            found.append(Finding(host=host.name, check="processor", found=what, todo=todo))
    return found if any(finding.is_fatal for finding in found) else found + _reached(hosts, notebook, new)


def _of_one(host: RemoteHost) -> list[Finding]:
    facts, name = host.facts, host.name
    found = [Finding(host=name, check="login", found=f"an agent is up at {facts['address']}, {facts['cores']} cores")]
    found += _versions(host)
    resolves = facts["resolves"]
    if resolves.startswith("127.") and not facts["address"].startswith("127."):
        what = f"its own name {facts['host']} resolves to {resolves}"
        todo = f"set {facts['address']} {facts['host']} in /etc/hosts there: libraries that resolve the name get the loopback address"
        found.append(Finding(host=name, check="own name", found=what, todo=todo))
    free = facts["shared_memory"]
    todo = "enlarge /dev/shm: it holds the values that cells use" if free < SHARED_MEMORY else ""
    found.append(Finding(host=name, check="shared memory", found=f"it has {free >> 20} MiB of shared memory free", todo=todo))
    behind = facts["time"] - facts["heard"]
    todo = "synchronize both clocks (NTP)" if abs(behind) > CLOCK else ""
    found.append(Finding(host=name, check="clock", found=f"its clock differs by {behind:+.1f} s", todo=todo))
    return found


def _versions(host: RemoteHost) -> list[Finding]:
    own, there, found = versions(), host.facts["versions"], []
    for library, version in own.items():
        other = there.get(library, "")
        if other == version:
            continue
        what = (
            f"it has {library} {other}, and the notebook has {version}"
            if other
            else f"{library} is not installed for {host.facts['python']}"
        )
        todo = f"use `--remote-python PATH` to name a Python {version}" if library == "Python" else f"install {library} {version} there"
        found.append(Finding(host=host.name, check="versions", found=what, todo=todo, is_fatal=True))
    told = ", ".join(f"{library} {version}" for library, version in own.items() if version)
    return found or [Finding(host=host.name, check="versions", found=f"they are the notebook's: {told}")]


def _reached(hosts: Sequence[RemoteHost], notebook: str, new: Sequence[RemoteHost]) -> list[Finding]:
    """Return which hosts can connect to which others: engines meet at ports that the system chooses."""
    found: list[Finding] = []
    try:
        server = socket.create_server((notebook, 0))
    except OSError:
        what = f"it sees the notebook's host as {notebook}, which is none of its addresses"
        todo = "use hosts that are reached without a jump host or address translation (NAT)"
        return [Finding(host=hosts[0].name, check="network", found=what, todo=todo, is_fatal=True)]
    with server:
        found += [_tried(host, "the notebook's host", notebook, server.getsockname()[1]) for host in new]
    for target in hosts:
        tried = [host for host in hosts if host is not target and (host in new or target in new)]
        if not tried:
            continue
        try:
            port = target.ask("listen", address=target.facts["address"])["port"]
        except ClusterError as error:
            todo = "log in to it at one of its own addresses"
            found.append(Finding(host=target.name, check="network", found=str(error), todo=todo, is_fatal=True))
            continue
        found += [_tried(host, target.name, target.facts["address"], port) for host in tried]
    return found


def _tried(host: RemoteHost, target: str, address: str, port: int) -> Finding:
    answer = host.ask("reach", address=address, port=port)
    if answer["reached"]:
        return Finding(host=host.name, check="network", found=f"it reaches {target}")
    what = f"it cannot connect to {target} ({address}:{port}, {answer['why']})"
    todo = f"allow {PORTS} from {host.name} in the firewall of {target}"
    return Finding(host=host.name, check="network", found=what, todo=todo, is_fatal=True)
