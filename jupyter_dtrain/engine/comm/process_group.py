"""The ranks' process group: joined once, kept across cells, and left in an order that cannot hang.

Ranks of one host that compute on CPUs are connected a second time, over shared memory (``shared_memory.py``). Those of several hosts are so
where a strategy needs it, over connections that carry what each shows (``connecting.py``).

They meet by an `Endpoint` of their cluster, a file in a folder that only their user can enter for example, and not by a ``TCPStore``: that
asks nobody who they are, so every user of the machine could read and write what the ranks tell each other, the addresses of gloo's
connections among it.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from ...cluster.endpoint import Endpoint
from . import links
from .connecting import Connector, OneHost, SeveralHosts
from .mailbox import Mailbox
from .rank_store import wait_for
from .shared_memory import SharedMemory
from .sockets import address_of
from .strangers import guarded_groups

LIMIT = timedelta(seconds=60)
"""Time that a rank waits for the others to come to a meeting."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one generation meet.

    Attributes
    ----------
    endpoint : Endpoint
        One that no other generation has met by.
    key : bytes
        What the ranks of this generation alone know: objects that one has from another are signed with it.
    """

    endpoint: Endpoint
    key: bytes = field(repr=False)


class ProcessGroup:
    """The membership of this process in a group of ranks."""

    def __init__(self) -> None:
        self._joined: tuple[Rendezvous, int, int] | None = None
        self._num_connected = 0  # how often ranks of several hosts were

    def join(
        self,
        rendezvous: Rendezvous,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        timeout: timedelta,
        between_hosts: bool = False,
    ) -> Store:
        """Be `rank` of the group that meets at `rendezvous`; does nothing where that is so already.

        `between_hosts`: memory is to be shared by ranks of several hosts too.

        Raises
        ------
        DistStoreError
            The others have not come within `LIMIT`, or `timeout` where that is shorter.
        """
        wanted = (rendezvous, rank, world_size)
        if self._joined != wanted or not dist.is_initialized():
            self.leave()
            _close_memory(for_good=True)
            limit = min(timeout, LIMIT)
            store: Store = rendezvous.endpoint.open(world_size, limit)
            # Waited for here, and not in gloo, which no interrupt reaches.
            gpus = all_come(store, rank=rank, world_size=world_size, limit=limit, says=gpu_of(device))
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            backend = backend_for(device, gpus)
            links.authenticate(rendezvous.key if rendezvous.endpoint.spans_hosts else None)
            with guarded_groups():
                dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=world_size, timeout=timeout)
            self._joined = wanted
            self._store = store
            self._num_connected = 0
            if device.type == "cpu" and world_size > 1 and not rendezvous.endpoint.spans_hosts:
                _share_memory(OneHost(), PrefixStore("memory", store), rank, world_size, limit)
        if device.type == "cpu" and world_size > 1 and rendezvous.endpoint.spans_hosts and between_hosts != (_near is not None):
            _close_memory(for_good=True)
            if between_hosts:
                self._num_connected += 1
                self._connect_hosts(rendezvous.key, rank, world_size, min(timeout, LIMIT))
        return self._store

    def _connect_hosts(self, key: bytes, rank: int, world_size: int, limit: timedelta) -> None:
        store, host = PrefixStore(f"memory/{self._num_connected}", self._store), address_of(os.environ["GLOO_SOCKET_IFNAME"])
        _share_memory(SeveralHosts(store, host, key, rank=rank, world_size=world_size, timeout=limit), store, rank, world_size, limit)

    def disconnect(self) -> None:
        """End the connections to ranks of other hosts, so that who waits for a silent one gets an error. Any thread may call this."""
        links.shut_down()
        if _connector is not None:
            _connector.cut()

    def leave(self) -> None:
        """Leave the group, which frees ranks that wait in one of its collectives.

        The caller has dropped its reducers: one that is dropped by the destruction itself holds the
        interpreter's lock while it joins a thread that needs it. Whatever still hangs on a cycle goes first.
        """
        self._joined = None
        _close_memory()
        if dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()


_near: SharedMemory | None = None
_store: Store | None = None
_connector: Connector | None = None
_among: dict[tuple[int, ...], SharedMemory] = {}


def _share_memory(connector: Connector, store: Store, rank: int, world_size: int, limit: timedelta) -> None:
    """Connect all ranks over memory. Collective."""
    global _near, _store, _connector
    _store, _connector = store, connector
    peers = connector.peers(store, rank=rank, ranks=range(world_size), size=SharedMemory.SIZE, timeout=limit)
    _near = None if peers is None else SharedMemory(peers)


def shared_memory() -> SharedMemory | None:
    """Return what connects the ranks of this process's group over memory, if they are."""
    return _near


def mailbox(memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
    """Return what some of the ranks that `memory` connects write to each other by. Collective."""
    assert _connector is not None
    return _connector.mailbox(memory, ranks)


def connector() -> Connector | None:
    """Return what connects the ranks of this process's group besides, if anything does."""
    return _connector


def shared_memory_among(ranks: Sequence[int]) -> SharedMemory:
    """Return what connects some of the ranks over memory, this one among them; they are numbered as they are in `ranks`.

    Collective among these, the first time. Ranks are connected by it that are all connected already.

    Raises
    ------
    RuntimeError
        They cannot be.
    """
    assert _near is not None and _store is not None and _connector is not None
    if len(ranks) == _near.num_ranks:
        return _near
    key = tuple(ranks)
    if key not in _among:
        store, own = PrefixStore(f"among/{key}", _store), key.index(_near.rank)
        peers = _connector.peers(store, rank=own, ranks=key, size=SharedMemory.SIZE, timeout=LIMIT)
        if peers is None:
            raise RuntimeError(f"Ranks {key} cannot share memory.")
        _among[key] = SharedMemory(peers)
    return _among[key]


def free_others() -> None:
    """Let ranks that wait for this one get an error: it exchanges nothing any more, and has not left yet."""
    _end_exchanges()
    links.shut_down()


def _end_exchanges() -> None:
    for memory in (_near, *_among.values()):
        if memory is not None:
            memory.close()


def _close_memory(*, for_good: bool = False) -> None:
    """Exchange nothing over memory any more; `for_good`: and let no other host read what is open, as it may after an error."""
    global _near, _store, _connector
    _end_exchanges()
    _near = _store = None
    _among.clear()
    if for_good and _connector is not None:
        _connector.close()
        _connector = None


def all_come(store: Store, *, rank: int, world_size: int, limit: timedelta, says: str = "") -> list[str]:
    """Wait until all ranks have come to `store`, and return what each of them `says`, in rank order. An interrupt ends it.

    Raises
    ------
    DistStoreError
        They have not come within `limit`.
    """
    store.set(f"here/{rank}", says)
    places = [f"here/{other}" for other in range(world_size)]
    wait_for(store, places, limit=limit)
    return [store.get(place).decode() for place in places]


def gpu_of(device: torch.device) -> str:
    """Return what tells the GPU of this process from all others, also on other hosts; empty where it computes on CPUs."""
    return f"{socket.gethostname()}/{os.environ.get('CUDA_VISIBLE_DEVICES', '')}/{device.index or 0}" if device.type == "cuda" else ""


def backend_for(device: torch.device, gpus: Sequence[str]) -> str:
    """Return PyTorch's backends for ranks on `device`; `gpus` are those of all ranks, as :func:`gpu_of` tells them.

    NCCL refuses two ranks on one GPU. Gloo carries the tensors of such ranks, by way of the host's memory.
    """
    if device.type != "cuda":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if len(set(gpus)) == len(gpus) else "cpu:gloo,cuda:gloo"
