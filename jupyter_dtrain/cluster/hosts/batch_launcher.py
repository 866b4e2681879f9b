"""Base class of launchers of jobs: submit a job, report how it waits, and accept the connections of its agents."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import ClassVar

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from ..base import Cluster, Progress
from ..devices import DevicePlan
from .agent_launcher import AgentLauncher, Agents, agent_python
from .batch_job import Job, JobState
from .dialed_link import DialedLink, invitation
from .job_requests import nodes_of
from .remote_host import LEAVE, LOGIN, RemoteHost

SOON, SELDOM = 0.5, 5.0
"""Seconds between queries of a waiting job, at first and later."""
ENDING = 15.0
"""Seconds for a job that is ending to be over: schedulers give processes time to end by themselves."""


class BatchLauncher(AgentLauncher):
    """Start an agent on each node of a job."""

    name: ClassVar[str]
    """Name after ``--launcher``."""
    picks_nodes: ClassVar[str]
    """Who chooses the hosts, for messages."""

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` if the engines cannot be divided evenly between the nodes, or if hosts are named."""
        super().check_cluster(options)
        if options.hosts:
            raise UsageError(f"--hosts and --launcher {self.name}: omit one of them; {self.picks_nodes} picks the nodes.")
        nodes = self.nodes(options)
        if options.num_engines is not None and options.num_engines % nodes:
            raise UsageError(f"--engines {options.num_engines} on {nodes} nodes: all nodes get the same number. Use a multiple of {nodes}.")

    def plan(self, options: ClusterOptions) -> list[DevicePlan]:
        """Return no plan: each node's agent makes its own."""
        _refuse_gpus(options)
        return super().plan(options)

    def start(self, options: ClusterOptions, *, on_progress: Progress | None = None) -> Cluster:
        """Start a cluster and wait until all engines answer."""
        _refuse_gpus(options)
        return super().start(options, on_progress=on_progress)

    def nodes(self, options: ClusterOptions) -> int:
        """Return the number of nodes."""
        return nodes_of(options.job)

    def engines_each(self, options: ClusterOptions) -> list[int | None]:
        """Return the number of engines for each node; ``None``: as many as suit it."""
        nodes = self.nodes(options)
        return [None if options.num_engines is None else options.num_engines // nodes] * nodes

    def script(self, options: ClusterOptions) -> str:
        """Return the job's script, without its key."""
        self.check_cluster(options)
        return self.script_of(options, "…")

    @abstractmethod
    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the job's script, for agents that connect by `invited`."""

    @abstractmethod
    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Submit a job."""

    def try_agents(self, options: ClusterOptions, tell: Progress) -> Agents:
        """Submit a job, and wait until it runs and its agents are up, however long it waits for nodes."""
        job: Job
        each = self.engines_each(options)
        links = [DialedLink(lambda: job.log()) for _ in each]
        try:
            job = self.submit(options, invitation(links))
        except BaseException:
            for link in links:
                link.kill()
            raise
        coming = ReturningAgents(job, links, python=agent_python(options))
        hosts = coming.hosts()
        found = Agents(hosts, each, release=coming.cancel)
        try:
            coming.wait(hosts, tell)
            coming.are_expected = job.may_run_again()
            found.again = coming.again if coming.are_expected else None
        except ClusterError as error:
            found.errors.append(str(error))
            found.end()
            found.hosts = []
        except BaseException:  # an interrupt as well
            found.end()
            raise
        return found


class ReturningAgents:
    """The agents of a job, and the new agents if its scheduler restarts it.

    Parameters
    ----------
    job : Job
    links : sequence of DialedLink
        The links to which its script invites agents, the same in each run of the job.
    python : str
        As in :class:`.RemoteHost`.

    Attributes
    ----------
    are_expected : bool
        Whether there may be new agents.
    """

    are_expected = False

    def __init__(self, job: Job, links: Sequence[DialedLink], *, python: str) -> None:
        self._job, self._links, self._python = job, list(links), python
        self._lost: set[int] = set()  # indices of links that listen again
        self._changing = threading.Lock()

    def hosts(self) -> list[RemoteHost]:
        """Return the hosts of the expected agents."""
        self._lost.clear()
        where = f"node {{}} of job {self._job.number}"
        return [
            RemoteHost(where.format(at + 1), link, python=self._python, explain=partial(self._explain, at))
            for at, link in enumerate(self._links)
        ]

    def _explain(self, at: int, host: RemoteHost) -> str:
        if host.is_up and self.are_expected:
            self._listen(at)  # first of all, as the next agent tries only once
        return _why(self._job, host)

    def _listen(self, at: int) -> None:
        with self._changing:
            if self.are_expected and at not in self._lost and self._links[at].wait(timedelta(seconds=1)):
                self._lost.add(at)
                self._links[at] = DialedLink(self._job.log, like=self._links[at])

    def wait(self, hosts: Sequence[RemoteHost], tell: Progress) -> None:
        """Wait until all agents are up; raise a `ClusterError` if one does not come."""
        _wait(self._job, hosts, tell)
        for host in hosts:
            host.wait_up(timedelta(seconds=1), waited=LOGIN)
            host.name = host.facts["node"] or host.facts["host"]

    def again(self, tell: Progress) -> list[RemoteHost]:
        """Return the hosts of the job's next run after all agents were lost; none if it will not run again."""
        if self._job.state().phase == "over":
            return []
        for at in range(len(self._links)):
            self._listen(at)
        hosts = self.hosts()
        try:
            self.wait(hosts, tell)
        except BaseException:
            for host in hosts:
                host.give_up()
            raise
        return hosts

    def cancel(self) -> None:
        """Cancel the job, and stop listening."""
        with self._changing:
            self.are_expected = False
        self._job.cancel()
        for at in self._lost:
            self._links[at].kill()


def _refuse_gpus(options: ClusterOptions) -> None:
    if options.job.gpus is not None:
        raise UsageError("--gpus-per-node: engines on other hosts compute on CPUs so far. Remove it, or see the job with `--show-script`.")


def _wait(job: Job, hosts: Sequence[RemoteHost], tell: Progress) -> None:
    """Wait until all agents are up, the job is over, or it runs without its agents coming up.

    The job may wait for its nodes any time, also when it gets nodes again.
    """
    began, runs_since, asked = time.monotonic(), None, 0.0
    while not all(host.is_up for host in hosts):
        now = time.monotonic()
        if now - asked >= min(max(SOON, (now - began) / 10), SELDOM):
            asked, state = now, job.state()
            if state.phase == "over":
                for host in hosts:
                    if not host.is_up:
                        host.give_up()
                        host.wait_up(timedelta(seconds=job.settles) + LEAVE)
            if state.phase == "waits":
                runs_since = None
            elif runs_since is None:
                runs_since = now
            tell(_told(job, state, hosts))
        if runs_since is not None and now - runs_since > LOGIN.total_seconds():
            return
        time.sleep(0.05)


def _told(job: Job, state: JobState, hosts: Sequence[RemoteHost]) -> str:
    if state.phase == "waits":
        begins = f", estimated start {state.begins}" if state.begins else ""
        reason = f" ({state.reason})" if state.reason else ""
        return f"job {job.number} is {state.told}{reason}{begins}"
    return f"job {job.number} is {state.told}: {sum(host.is_up for host in hosts)} of {len(hosts)} agents are up"


def _why(job: Job, host: RemoteHost) -> str:
    """Return why an agent has ended; waits, as a scheduler may learn of it later than its connection."""
    began = time.monotonic()
    node = host.facts.get("node") or host.facts.get("host", "")
    while not (why := job.why_ended(node)) and time.monotonic() - began < (ENDING if job.is_ending else job.settles):
        time.sleep(0.3)
    return why
