"""A cluster over several hosts: its controller beside the notebook, behind CURVE, and its engines below the agents of their hosts."""

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
    """Engines on hosts whose agents have come up, each on what its agent has planned.

    Parameters
    ----------
    hosts : sequence of RemoteHost
        Ended with the cluster.
    plans : sequence of (RemoteHost, DevicePlan)
        In rank order.
    address : str
        Of this host, as the others reach it.

    Attributes
    ----------
    release : callable
        Called once all has ended: gives back what the agents ran in.
    """

    release: Callable[[], None] = staticmethod(lambda: None)
    spans_hosts = True
    can_be_inherited = False
    _launcher: HostLauncher
    _processes: HostProcesses

    start_dask = Cluster.start_dask  # which refuses

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
        """Start a controller and the engines, and wait until all answer; where they do not come up nothing is left running."""
        sweep()
        cluster = cls(hosts, plans, address, again=again, redial=redial)
        try:
            cluster._start([plan for _, plan in plans], cluster._arrival(on_progress, limit))
        except BaseException:  # an interrupt as well
            cluster.stop()
            raise
        return cluster

    # -- what there is ----------------------------------------------------------------------------------------------

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
        """Return what there is to tell of those that can be reached again."""
        return self._returning.news()

    def ranks_of_lost_hosts(self) -> list[int]:
        """Return the ranks whose engines were on hosts that are lost, and are nowhere else yet."""
        hosts = [self._host_of(rank) for rank in range(len(self._members))]
        return [rank for rank, host in enumerate(hosts) if host is not None and host.lost]

    @property
    def files(self) -> HostFiles:
        """What lies in the folder of buffers, which each host has for itself."""
        return HostFiles(self.blob_dir, self._hosts, self._host_of)

    def rendezvous_endpoint(self) -> StoreEndpoint:
        """Return a place in the notebook's process where the ranks of one generation meet."""
        return self._store.endpoint()

    def last_words(self, rank: int) -> str:
        """Return what the engine of `rank` wrote last."""
        host = self._host_of(rank)
        if host is None or host.lost:
            return ""
        with suppress(ClusterError):
            text: str = host.ask("log_tail", name=self._members[rank].name)["text"]
            return text
        return ""

    def why_lost(self, rank: int) -> str:
        """Return why the engine of `rank` has ended where its host is the reason."""
        host = self._host_of(rank)
        if host is None or not host.lost:
            return ""
        kept = "" if host.facts.get("shares_folder") or rank else ", and with it the files that the cell has written there"
        return f"the host {host.name} is lost{kept}: {host.lost}"

    def _host_of(self, rank: int) -> RemoteHost | None:
        return self._processes.host_of(self._members[rank].name)

    # -- what can be done -------------------------------------------------------------------------------------------

    def prepare_spare(self) -> bool:
        """Keep engines in reserve on a host that has come back, for the ranks that it had; for others one is forked in milliseconds."""
        return self._returning.look()

    def take_back(self) -> int:
        """Let the engines of a host that has come back be ranks, in the place of those that it had."""
        if (found := self._returning.take()) is None:
            return 0
        lost, host, members = found
        self._hosts[self._hosts.index(lost)] = host
        for member in members:
            self._launcher.place(self._add(member), host)
        return len(members)

    def drop(self, ranks: Sequence[int]) -> None:
        """Do without the engines of `ranks`; those behind them move up, and stay where they are. Hosts that have none then are lost."""
        numbers = Counter(self._host_of(rank) for rank in ranks)
        super().drop(ranks)
        self._launcher.drop(ranks)
        left = {self._host_of(rank) for rank in range(len(self._members))}
        for host, number in numbers.items():
            if host is not None and host not in left:
                host.lose("none of its engines could be used")
                self._returning.miss(host, num_engines=number)

    def _make_ready(self, lost: RemoteHost, host: RemoteHost, num_engines: int) -> list[Spare]:
        """Let a host that was lost have engines again, which are no ranks yet."""
        self._hear(host)
        plans = self._launcher.take_in(lost, host, num_engines)
        self._connect_host(host)
        return [self._spare_of(partial(self._launcher.start_in_reserve, host, plan), memory=0) for plan in plans]

    def _hear(self, host: RemoteHost) -> None:
        host.on_event, host.on_lost = self._processes.take, self._processes.lose

    def _connect_host(self, host: RemoteHost) -> None:
        host.tell("connect", connection=self._connection)
        host.work(is_on=self._is_at_work)

    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:  # noqa: ARG002  # the base's
        """Do not: agents know of one controller alone."""
        return False

    def stop(self) -> None:
        """End every process of the cluster on every host. Calling it again does nothing, nor does it in a fork of the kernel."""
        if self._stopped or os.getpid() != self._kernel:
            return
        self._hosts += self._returning.stop()
        super().stop()
        self._store.close()
        self.release()

    @property
    def is_leaving(self) -> bool:
        """Whether a scheduler takes hosts away."""
        return any(host.is_leaving and not host.lost for host in self._hosts)

    def let_go(self) -> None:
        """Let hosts that are leaving end what runs there."""
        for host in self._hosts:
            if host.is_leaving:
                host.let_go()

    def wait_for_hosts(self, on_progress: Progress) -> bool:
        """Wait for other hosts where all are lost and a scheduler gives others; return whether there are."""
        if self._again is None or not all(host.lost for host in self._hosts) or not (found := self._again(on_progress)):
            return False
        for host in found:
            self._hear(host)
        before, self._hosts[:] = list(self._hosts), found  # who knows them has this list
        self._launcher.move(dict(zip(before, found, strict=True)))
        for host in found:
            self._connect_host(host)
        return True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let hosts that are silent be lost soon, until the end of the ``with`` block."""
        self._work(is_on=True)
        try:
            yield
        finally:
            self._work(is_on=False)

    def _work(self, *, is_on: bool) -> None:
        self._is_at_work = is_on
        for host in [*self._hosts, *self._returning.hosts]:
            host.work(is_on=is_on)

    # -- how it starts -----------------------------------------------------------------------------------------------

    def _connect(self, arrival: Arrival) -> None:
        self._connection = arrival.of_file(self._launcher.connection_files[1])
        for host in self._hosts:
            host.tell("connect", connection=self._connection)
        super()._connect(arrival)
