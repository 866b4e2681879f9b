"""Starts clusters in jobs of Slurm's: one agent on each node, which connects to the notebook's process, and engines below it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from ...errors import ClusterError, UsageError
from ...options import ClusterOptions
from ..base import Progress
from .agent_launcher import AgentLauncher, Agents, agent_python
from .dialed_link import DialedLink, invitation
from .remote_host import LEAVE, LOGIN, RemoteHost
from .slurm_job import AllocatedStep, BatchJob, JobState, SlurmJob, allocated_nodes, nodes_of, script_of

SOON, SELDOM = 0.5, 5.0
"""Seconds between questions for a job that waits, at first and after a while: a scheduler has others to answer."""
SETTLES = 1.5
"""Seconds in which Slurm gets to know what has ended an agent."""


class SlurmLauncher(AgentLauncher):
    """Starts an agent on each node of a job, or of the allocation that the notebook itself runs in."""

    def check_cluster(self, options: ClusterOptions) -> None:
        """Refuse engines that cannot be on so many nodes alike."""
        super().check_cluster(options)
        if options.hosts:
            raise UsageError("--hosts and --launcher slurm: omit one of them; Slurm picks the nodes.")
        nodes = nodes_of(options)
        if options.num_engines is not None and options.num_engines % nodes:
            raise UsageError(f"--engines {options.num_engines} on {nodes} nodes: each has as many engines; give a multiple of {nodes}.")
        if (has := allocated_nodes()) and nodes > has:
            raise UsageError(f"--nodes {nodes}: the allocation that this notebook runs in has {has}.")

    def script(self, options: ClusterOptions) -> str:
        """Return the job's script, without its key."""
        self.check_cluster(options)
        return script_of(options)

    def try_agents(self, options: ClusterOptions, tell: Progress) -> Agents:
        """Submit a job, and wait until it runs and its agents have come up, however long it waits for its nodes."""
        job: SlurmJob
        links = [DialedLink(lambda: job.log()) for _ in range(nodes_of(options))]
        try:
            invited = invitation(links)
            job = AllocatedStep(options, invited) if allocated_nodes() else BatchJob(script_of(options, invited))
        except BaseException:
            for link in links:
                link.kill()
            raise
        where = f"node {{}} of job {job.number}"
        hosts = [
            RemoteHost(where.format(at + 1), link, python=agent_python(options), explain=lambda host: _why(job, host))
            for at, link in enumerate(links)
        ]
        each = None if options.num_engines is None else options.num_engines // nodes_of(options)
        found = Agents(hosts, [each] * len(hosts), release=job.cancel)
        try:
            _wait(job, hosts, tell)
            for host in hosts:
                host.wait_up(timedelta(seconds=1))
                host.name = host.facts["node"] or host.facts["host"]
        except ClusterError as error:
            found.errors.append(str(error))
            found.end()
            found.hosts = []
        except BaseException:  # an interrupt as well
            found.end()
            raise
        return found


def _wait(job: SlurmJob, hosts: Sequence[RemoteHost], tell: Progress) -> None:
    """Wait until all agents are up, the job is over, or it runs and they do not come."""
    began, runs_since, asked = time.monotonic(), None, 0.0
    while not all(host.is_up for host in hosts):
        now = time.monotonic()
        if now - asked >= min(max(SOON, (now - began) / 10), SELDOM):
            asked, state = now, job.state()
            if state.is_over:
                for host in hosts:
                    if not host.is_up:
                        host.give_up()
                        host.wait_up(timedelta(seconds=SETTLES) + LEAVE)
            if not state.waits and runs_since is None:
                runs_since = now
            tell(_told(job, state, hosts))
        if runs_since is not None and now - runs_since > LOGIN.total_seconds():
            return
        time.sleep(0.05)


def _told(job: SlurmJob, state: JobState, hosts: Sequence[RemoteHost]) -> str:
    if state.waits:
        known = state.begins not in ("", "N/A")
        begins = f", to begin at {state.begins} as Slurm estimates" if known else ""
        return f"job {job.number} is {state.state} ({state.reason}){begins}"
    return f"job {job.number} is {state.state}: {sum(host.is_up for host in hosts)} of {len(hosts)} agents are up"


def _why(job: SlurmJob, host: RemoteHost) -> str:
    """Return what Slurm says of an agent's end, which it may hear of later than the agent does."""
    end = time.monotonic() + SETTLES
    while not (why := job.why_ended(host.facts.get("node", ""))) and time.monotonic() < end:
        time.sleep(0.3)
    return why
