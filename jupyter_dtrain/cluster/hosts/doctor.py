"""``%distribute doctor``: check hosts, and show the findings as a table with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from ..base import Progress
from ..launchers import find_launcher
from .agent_launcher import AgentLauncher, address_of_notebook
from .folder_token import folder_token
from .host_checks import Finding, findings_of
from .remote_host import RemoteHost

HEADINGS = ("host", "check", "found", "what to do")


def examine(options: ClusterOptions, *, on_progress: Progress) -> str:
    """Return the findings for the hosts of `options`. Starts no engines, and leaves nothing on the hosts."""
    if options.launcher is None:
        raise UsageError("%distribute doctor checks other hosts. Name them with --hosts A,B, or with --profile NAME.")
    launcher = find_launcher(options.launcher)
    if not isinstance(launcher, AgentLauncher):
        raise UsageError(f"%distribute doctor checks other hosts, but --launcher {options.launcher} uses none. Add --hosts A,B.")
    launcher.check_cluster(options)
    agents = launcher.try_agents(options, on_progress)
    try:
        found = [_not_up(error) for error in agents.errors]
        if agents.hosts:
            found += _of_those_up(agents.hosts)
    finally:
        agents.end()
    order = {name: number for number, name in enumerate([host.name for host in options.hosts] or [host.name for host in agents.hosts])}
    found.sort(key=lambda finding: order.get(finding.host, len(order)))
    refused = any(finding.is_fatal for finding in found)
    todo = sum(bool(finding.todo) for finding in found)
    end_line = "`%distribute start` would fail on these hosts." if refused else "Engines can start on these hosts."
    return "\n".join([*_table(found), "", f"{todo or 'Nothing'} to fix. {end_line}"])


def _not_up(error: str) -> Finding:
    host, _, why = error.removesuffix(".").partition(": ")
    what, _, todo = why.partition(": ")
    return Finding(host=host, check="login", found=what, todo=todo or "read the message", is_fatal=True)


def _of_those_up(hosts: Sequence[RemoteHost]) -> list[Finding]:
    try:
        found = findings_of(hosts, address_of_notebook(hosts))
    except ClusterError as error:
        return [Finding(host=hosts[0].name, check="network", found=str(error), todo="read the message", is_fatal=True)]
    with folder_token() as token:
        for host in hosts:
            is_shared = token is not None and host.ask("shares", cwd=str(Path.cwd()), token=token.name)["shares_folder"]
            what = (
                "it has the notebook's folder"
                if is_shared
                else "it does not have the notebook's folder: what cells write stays on rank 0's host"
            )
            found.append(Finding(host=host.name, check="folder", found=what))
    return found


def _table(found: Sequence[Finding]) -> list[str]:
    rows = [HEADINGS, *((one.host, one.check, one.found, one.todo) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
