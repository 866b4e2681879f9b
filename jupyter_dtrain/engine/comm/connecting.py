"""Connections between ranks that share memory: of one host, or of several."""

from __future__ import annotations

import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from weakref import WeakSet

from torch.distributed import Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from .host_mailbox import HostMailbox
from .host_peers import HostPeers
from .mailbox import FileMailbox, Mailbox
from .peers import Peers
from .rank_server import FILES, GREETING, RankServer, call, shut
from .rank_store import wait_for
from .shared_memory import SharedMemory


class Connector(ABC):
    """Connects a rank with others of its generation."""

    @abstractmethod
    def peers(self, store: Store, *, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> Peers | None:
        """Connect some ranks, each with `size` bytes of memory to write to. Collective among them.

        Parameters
        ----------
        store : Store
            A store that only these ranks use.
        rank : int
            This process's number among them.
        ranks : sequence of int
            Their ranks in the generation.
        size : int
        timeout : timedelta

        Returns
        -------
        Peers, optional
            ``None`` on all of them if one cannot be connected.
        """

    @abstractmethod
    def mailbox(self, memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
        """Return a mailbox for some of the ranks that `memory` connects. Collective among all of these."""

    def neighbour(self) -> int | None:
        """Return the rank on another host that keeps this rank's snapshot replica; ``None`` if there is no other host."""
        return None

    def call(self, rank: int, purpose: str) -> socket.socket:  # noqa: ARG002  # unused on one host
        """Return a new connection to another rank, which a thread there serves according to `purpose`.

        Raises
        ------
        OSError
            The rank cannot be reached.
        """
        raise ConnectionError(f"rank {rank} is on this host")

    def answer(self, purpose: str, do: Callable[[socket.socket], None]) -> None:  # noqa: B027  # unused on one host
        """Serve each connection that other ranks make for `purpose` by calling `do`, in a thread of its own."""

    def cut(self) -> None:  # noqa: B027  # on one host the end of a process is noticed
        """Shut down connections to other hosts, so that whoever waits for a silent rank gets an error. Any thread may call this."""

    def close(self) -> None:  # noqa: B027  # on one host files stay readable for those who opened them
        """Stop other ranks from reading anything of this rank."""


class OneHost(Connector):
    """Connects ranks of one host."""

    def peers(self, store: Store, *, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> Peers | None:
        """Connect the ranks over Unix sockets and shared memory."""
        return Peers.rendezvous(store, rank=rank, world_size=len(ranks), size=size, timeout=timeout)

    def mailbox(self, memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
        """Return a mailbox that uses files in memory."""
        return FileMailbox(memory, ranks)


class SeveralHosts(Connector):
    """Connects ranks on any hosts. Collective.

    Parameters
    ----------
    store : Store
        Used by all ranks.
    host : str
        Address of this host.
    key : bytes
        Secret of the generation's ranks.
    rank, world_size : int
    timeout : timedelta
    """

    def __init__(self, store: Store, host: str, key: bytes, *, rank: int, world_size: int, timeout: timedelta) -> None:
        self._key, self._rank = key, rank
        self._peers: WeakSet[HostPeers] = WeakSet()
        self._calls: WeakSet[socket.socket] = WeakSet()
        self._is_cut = False
        self._num_mailboxes = 0
        self._server = RankServer(host, key)
        try:
            store.set(f"server/{rank}", json.dumps(self._server.address))
            places = [f"server/{other}" for other in range(world_size)]
            wait_for(store, places, limit=timeout)
            self._addresses: list[Sequence[object]] = [json.loads(store.get(place)) for place in places]
        except BaseException:
            self._server.close()
            raise

    def peers(self, store: Store, *, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> Peers:
        """Connect the ranks over TCP; a subgroup on one host over shared memory if possible."""
        if len(ranks) < len(self._addresses) and len({self._addresses[other][0] for other in ranks}) == 1:
            near = Peers.rendezvous(store, rank=rank, world_size=len(ranks), size=size, timeout=timeout)
            if near is not None:
                return near
        links = self._links("memory", ranks, timeout)
        again = {number: partial(self.call, ranks[number], FILES) for number in links}
        found = HostPeers(rank, links, again, self._server, size=size, timeout=timeout)
        self._peers.add(found)
        return found

    def mailbox(self, memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
        """Return a mailbox that uses connections."""
        self._num_mailboxes += 1
        return HostMailbox(memory, ranks, self._links(f"mail {self._num_mailboxes}", ranks, GREETING))

    def _links(self, what: str, ranks: Sequence[int], timeout: timedelta) -> dict[int, socket.socket]:
        """Return connections to the other ranks among `ranks`, by position. Collective among these.

        Raises
        ------
        OSError
            A rank cannot be reached, or does not connect in time.
        """
        name = f"{what} of {','.join(map(str, ranks))}"
        found: dict[int, socket.socket] = {}
        try:
            for number, rank in enumerate(ranks):
                if rank < self._rank:
                    found[number] = self.call(rank, name)
            for number, rank in enumerate(ranks):
                if rank > self._rank:
                    found[number] = self._server.arrival(name, rank, timeout)
                    self._calls.add(found[number])
        except BaseException:
            for link in found.values():
                link.close()
            raise
        return found

    def neighbour(self) -> int | None:
        """Return a rank on the next host in rank order, spread evenly over that host's ranks; ``None`` if there is only one host."""
        of_hosts: dict[object, list[int]] = {}
        for rank, (host, _) in enumerate(self._addresses):
            of_hosts.setdefault(host, []).append(rank)
        hosts = list(of_hosts)
        own = hosts.index(self._addresses[self._rank][0])
        after = of_hosts[hosts[(own + 1) % len(hosts)]]
        return None if len(hosts) == 1 else after[of_hosts[hosts[own]].index(self._rank) % len(after)]

    def call(self, rank: int, purpose: str) -> socket.socket:
        """Return a new connection to another rank."""
        if self._is_cut:
            raise ConnectionError("this rank leaves")
        made = call(self._addresses[rank], key=self._key, rank=self._rank, purpose=purpose, limit=GREETING)
        self._calls.add(made)
        return made

    def answer(self, purpose: str, do: Callable[[socket.socket], None]) -> None:
        """Serve each connection that other ranks make for `purpose` by calling `do`."""
        self._server.answers[purpose] = do

    def cut(self) -> None:
        """Shut down all connections to other ranks."""
        self._is_cut = True
        for made in list(self._calls):
            shut(made)
        for peers in list(self._peers):
            peers.cut()

    def close(self) -> None:
        """Shut down all connections and the server."""
        self.cut()
        self._server.close()
