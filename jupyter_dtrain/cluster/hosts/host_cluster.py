"""A cluster over several hosts: the controller beside the notebook, behind CURVE, and engines below their hosts' agents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ...errors import ClusterError
from ...protocol import EngineInfo
from ..base import Cluster, Progress
from ..devices import DevicePlan
from ..folders import sweep
from ..local import LocalCluster
from ..ranked_engines import WARM_MODULES
from ..spare import Spare
from ..startup import Arrival
from .frames import Header
from .host_files import HostFiles
from .host_launcher import HostLauncher
from .host_processes import HostProcesses
from .remote_host import RemoteHost
from .returning_hosts import Redial, ReturningHosts
from .store_server import StoreEndpoint, StoreServer


class HostCluster(LocalCluster):
    """Engines on hosts with agents, on the devices that the agents have planned.

    Parameters
    ----------
    hosts : sequence of RemoteHost
        Ended with the cluster.
    plans : sequence of (RemoteHost, DevicePlan)
        In rank order.
    address : str
        This host's address, as the others reach it.

    Attributes
    ----------
    release : callable
        Called after the cluster has ended: releases what the agents ran in.
    """

    release: Callable[[], None] = staticmethod(lambda: None)
    spans_hosts = True
    can_be_inherited = False
    _launcher: HostLauncher
    _processes: HostProcesses

    start_dask = Cluster.start_dask  # raises an error

    def __init__(
        self,
        hosts: Sequence[RemoteHost],
        plans: Sequence[tuple[RemoteHost, DevicePlan]],
        address: str,
        *,
        again: Callable[[Progress], list[RemoteHost]] | None = None,
        redial: Redial | None = None,
    ) -> None:
        self._store, self._again = StoreServer(address), again
        self._returning = ReturningHosts(redial, self._make_ready)
        self._is_at_work = False
        self._connection: Header = {}
        super().__init__(HostProcesses)
        self._hosts = self._processes.hosts = list(hosts)
        self._launcher = HostLauncher(
            self._processes, self._folders, WARM_MODULES, hosts=self._hosts, plans=plans, address=address, linger=again is not None
        )
        for host in hosts:
            self._hear(host)

    @classmethod
    def start_on(
        cls,
        hosts: Sequence[RemoteHost],
        plans: Sequence[tuple[RemoteHost, DevicePlan]],
        address: str,
        *,
        limit: timedelta,
        on_progress: Progress | None,
        again: Callable[[Progress], list[RemoteHost]] | None = None,
        redial: Redial | None = None,
    ) -> HostCluster:
        """Start a controller and the engines, and wait until all answer; if that fails, nothing is left running."""
        sweep()
        cluster = cls(hosts, plans, address, again=again, redial=redial)
        try:
            cluster._start([plan for _, plan in plans], cluster._arrival(on_progress, limit))
        except BaseException:  # an interrupt as well
            cluster.stop()
            raise
        return cluster

    # -- contents ------------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[EngineInfo]:
        """The engines in rank order."""
        return [
            replace(found, host=host.name if (host := self._host_of(found.rank)) is not None else found.host) for found in super().engines
        ]

    @property
    def lost_hosts(self) -> list[str]:
        """The hosts that were lost."""
        return [host.name for host in self._hosts if host.lost]

    def news_of_hosts(self) -> list[str]:
        """Return new messages about hosts that can be reached again."""
        return self._returning.news()

    def ranks_of_lost_hosts(self) -> list[int]:
        """Return the ranks whose engines were on lost hosts and were not replaced yet."""
        hosts = [self._host_of(rank) for rank in range(len(self._members))]
        return [rank for rank, host in enumerate(hosts) if host is not None and host.lost]

    @property
    def files(self) -> HostFiles:
        """Access to the folder of buffers, of which each host has its own."""
        return HostFiles(self.blob_dir, self._hosts, self._host_of)

    def rendezvous_endpoint(self) -> StoreEndpoint:
        """Return a new rendezvous in the notebook's process."""
        return self._store.endpoint()

    def last_words(self, rank: int) -> str:
        """Return the last output of the engine of `rank`."""
        host = self._host_of(rank)
        if host is None or host.lost:
            return ""
        with suppress(ClusterError):
            text: str = host.ask("log_tail", name=self._members[rank].name)["text"]
            return text
        return ""

    def why_lost(self, rank: int) -> str:
        """Return why the engine of `rank` was lost, if its host is the reason."""
        host = self._host_of(rank)
        if host is None or not host.lost:
            return ""
        kept = "" if host.facts.get("shares_folder") or rank else ", and with it the files that the cell has written there"
        return f"the host {host.name} is lost{kept}: {host.lost}"

    def _host_of(self, rank: int) -> RemoteHost | None:
        return self._processes.host_of(self._members[rank].name)

    # -- actions -------------------------------------------------------------------------------------------------------

    def prepare_spare(self) -> bool:
        """Keep spare engines on a host that has come back, for the ranks that it had. Other replacements are forked in milliseconds."""
        return self._returning.look()

    def take_back(self) -> int:
        """Turn the spare engines of a host that has come back into ranks at the end."""
        if (found := self._returning.take()) is None:
            return 0
        lost, host, members = found
        self._hosts[self._hosts.index(lost)] = host
        for member in members:
            self._launcher.place(self._add(member), host)
        return len(members)

    def drop(self, ranks: Sequence[int]) -> None:
        """Remove the engines of `ranks`; higher ranks move up and stay on their hosts. A host without engines counts as lost."""
        numbers = Counter(self._host_of(rank) for rank in ranks)
        super().drop(ranks)
        self._launcher.drop(ranks)
        left = {self._host_of(rank) for rank in range(len(self._members))}
        for host, number in numbers.items():
            if host is not None and host not in left:
                host.lose("none of its engines could be used")
                self._returning.miss(host, num_engines=number)

    def _make_ready(self, lost: RemoteHost, host: RemoteHost, num_engines: int) -> list[Spare]:
        """Start spare engines on a host that was lost."""
        self._hear(host)
        plans = self._launcher.take_in(lost, host, num_engines)
        self._connect_host(host)
        return [self._spare_of(partial(self._launcher.start_in_reserve, host, plan), memory=0) for plan in plans]

    def _hear(self, host: RemoteHost) -> None:
        host.on_event, host.on_lost = self._processes.take, self._processes.lose

    def _connect_host(self, host: RemoteHost) -> None:
        host.tell("connect", connection=self._connection)
        host.work(is_on=self._is_at_work)

    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:  # noqa: ARG002  # signature of the base class
        """Return False: agents know only one controller."""
        return False

    def stop(self) -> None:
        """End every process of the cluster on every host. Does nothing when called again, or in a fork of the kernel."""
        if self._stopped or os.getpid() != self._kernel:
            return
        self._hosts += self._returning.stop()
        super().stop()
        self._store.close()
        self.release()

    @property
    def is_leaving(self) -> bool:
        """Whether a scheduler is taking hosts away."""
        return any(host.is_leaving and not host.lost for host in self._hosts)

    def let_go(self) -> None:
        """Let leaving hosts end their processes."""
        for host in self._hosts:
            if host.is_leaving:
                host.let_go()

    def wait_for_hosts(self, on_progress: Progress) -> bool:
        """If all hosts are lost and the scheduler provides new ones, wait for these; return whether there are new ones."""
        if self._again is None or not all(host.lost for host in self._hosts) or not (found := self._again(on_progress)):
            return False
        for host in found:
            self._hear(host)
        before, self._hosts[:] = list(self._hosts), found  # in place, as other objects share this list
        self._launcher.move(dict(zip(before, found, strict=True)))
        for host in found:
            self._connect_host(host)
        return True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Treat silent hosts as lost soon, within the ``with`` block."""
        self._work(is_on=True)
        try:
            yield
        finally:
            self._work(is_on=False)

    def _work(self, *, is_on: bool) -> None:
        self._is_at_work = is_on
        for host in [*self._hosts, *self._returning.hosts]:
            host.work(is_on=is_on)

    # -- start ---------------------------------------------------------------------------------------------------------

    def _connect(self, arrival: Arrival) -> None:
        self._connection = arrival.of_file(self._launcher.connection_files[1])
        for host in self._hosts:
            host.tell("connect", connection=self._connection)
        super()._connect(arrival)
