"""How ranks get connections over which they share memory: those of one host, or of several."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from weakref import WeakSet

from torch.distributed import Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from .host_peers import HostPeers
from .peers import Peers
from .rank_server import RankServer
from .rank_store import wait_for


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

    def cut(self) -> None:  # noqa: B027  # on one host a process that ends is seen
        """End connections to ranks of other hosts, so that who waits for a silent one gets an error. Any thread may call this."""

    def close(self) -> None:  # noqa: B027  # files of one host are who has opened them
        """Let nobody read anything of this rank any more."""


class OneHost(Connector):
    """Connects ranks of one host."""

    def peers(self, store: Store, *, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> Peers | None:
        """Connect them over Unix sockets and memory."""
        return Peers.rendezvous(store, rank=rank, world_size=len(ranks), size=size, timeout=timeout)


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
        self._key = key
        self._peers: WeakSet[HostPeers] = WeakSet()
        self._server = RankServer(host, key)
        try:
            store.set(f"server/{rank}", json.dumps(self._server.address))
            places = [f"server/{other}" for other in range(world_size)]
            wait_for(store, places, limit=timeout)
            self._addresses: list[Sequence[object]] = [json.loads(store.get(place)) for place in places]
        except BaseException:
            self._server.close()
            raise

    def peers(self, store: Store, *, rank: int, ranks: Sequence[int], size: int, timeout: timedelta) -> Peers:  # noqa: ARG002
        """Connect them over TCP."""
        addresses = [self._addresses[other] for other in ranks]
        name = ",".join(map(str, ranks))
        found = HostPeers.connect(self._server, addresses, name=name, key=self._key, rank=rank, size=size, timeout=timeout)
        self._peers.add(found)
        return found

    def cut(self) -> None:
        """End connections to others."""
        for peers in list(self._peers):
            peers.cut()

    def close(self) -> None:
        """End all connections."""
        self.cut()
        self._server.close()
