"""How ranks get connections over which they share memory: those of one host, or of several."""

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
        """Connect some ranks, each with `size` bytes to write to. Collective among them.

        Parameters
        ----------
        store : Store
            Where these ranks alone meet.
        rank : int
            Of this process, as it is numbered among them.
        ranks : sequence of int
            Those of the generation.

        Returns
        -------
        Peers, optional
            ``None`` on all of them where one cannot.
        """

    @abstractmethod
    def mailbox(self, memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
        """Return what some of the ranks that `memory` connects write to each other by. Collective among all of them."""

    def neighbour(self) -> int | None:
        """Return the rank of another host that keeps copies for this one; ``None``: there is no other host."""
        return None

    def call(self, rank: int, purpose: str) -> socket.socket:  # noqa: ARG002  # on one host nobody calls
        """Return a new connection with another rank, whose thread does there what it answers this purpose with.

        Raises
        ------
        OSError
            It cannot be reached.
        """
        raise ConnectionError(f"rank {rank} is on this host")

    def answer(self, purpose: str, do: Callable[[socket.socket], None]) -> None:  # noqa: B027  # on one host nobody calls
        """Let `do` be called with each connection that others make for a purpose, in a thread of its own."""

    def cut(self) -> None:  # noqa: B027  # on one host a process that ends is seen
        """End connections to ranks of other hosts, so that who waits for a silent one gets an error. Any thread may call this."""

    def close(self) -> None:  # noqa: B027  # files of one host are who has opened them
        """Let nobody read anything of this rank any more."""


class OneHost(Connector):
    """Connects ranks of one host."""

    def peers(self, store: Store, *, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> Peers | None:
        """Connect them over Unix sockets and memory."""
        return Peers.rendezvous(store, rank=rank, world_size=len(ranks), size=size, timeout=timeout)

    def mailbox(self, memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
        """Return one of files."""
        return FileMailbox(memory, ranks)


class SeveralHosts(Connector):
    """Connects ranks on whichever hosts. Collective.

    Parameters
    ----------
    store : Store
        Where all of them meet.
    host : str
        The address of this one's.
    key : bytes
        What they alone know.
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
        """Connect them over TCP, or, a group of one host that can be, over its memory."""
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
        """Return one of connections."""
        self._num_mailboxes += 1
        return HostMailbox(memory, ranks, self._links(f"mail {self._num_mailboxes}", ranks, GREETING))

    def _links(self, what: str, ranks: Sequence[int], timeout: timedelta) -> dict[int, socket.socket]:
        """Return a connection with each other of some ranks, by its place among them. Collective among them.

        Raises
        ------
        OSError
            One cannot be reached, or does not come.
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
        """Return a rank of the host that comes next by the numbers of ranks: another one for each of this host, as far as there are."""
        of_hosts: dict[object, list[int]] = {}
        for rank, (host, _) in enumerate(self._addresses):
            of_hosts.setdefault(host, []).append(rank)
        hosts = list(of_hosts)
        own = hosts.index(self._addresses[self._rank][0])
        after = of_hosts[hosts[(own + 1) % len(hosts)]]
        return None if len(hosts) == 1 else after[of_hosts[hosts[own]].index(self._rank) % len(after)]

    def call(self, rank: int, purpose: str) -> socket.socket:
        """Return a new connection with another rank."""
        if self._is_cut:
            raise ConnectionError("this rank leaves")
        made = call(self._addresses[rank], key=self._key, rank=self._rank, purpose=purpose, limit=GREETING)
        self._calls.add(made)
        return made

    def answer(self, purpose: str, do: Callable[[socket.socket], None]) -> None:
        """Let `do` be called with each connection that others make for a purpose."""
        self._server.answers[purpose] = do

    def cut(self) -> None:
        """End connections to others."""
        self._is_cut = True
        for made in list(self._calls):
            shut(made)
        for peers in list(self._peers):
            peers.cut()

    def close(self) -> None:
        """End all connections."""
        self.cut()
        self._server.close()
