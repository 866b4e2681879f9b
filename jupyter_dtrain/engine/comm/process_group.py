"""The ranks' process group: joined once, kept across cells, and left in an order that cannot deadlock.

Ranks of one host that compute on CPUs are also connected over shared memory (``shared_memory.py``). Ranks on several hosts are connected
likewise if a strategy needs it, over connections that emulate shared memory (``connecting.py``).

Ranks meet through an `Endpoint` of their cluster, for example a file in a folder that only their user can enter, and not through a
``TCPStore``. A ``TCPStore`` has no authentication: every user of the machine could read and write what the ranks exchange, including the
addresses of gloo's connections.
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
"""Longest wait of a rank for the others at a rendezvous."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one generation meet.

    Attributes
    ----------
    endpoint : Endpoint
        Not used by any other generation.
    key : bytes
        Secret of this generation's ranks, with which they sign objects for each other.
    """

    endpoint: Endpoint
    key: bytes = field(repr=False)


class ProcessGroup:
    """The membership of this process in a group of ranks."""

    def __init__(self) -> None:
        self._joined: tuple[Rendezvous, int, int] | None = None
        self._num_connected = 0  # number of times that ranks of several hosts were connected

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
        """Join the group that meets at `rendezvous` as `rank`, unless this process has done so already.

        Parameters
        ----------
        between_hosts : bool
            Whether ranks of several hosts share memory too.

        Raises
        ------
        DistStoreError
            The others have not come within `LIMIT`, or within `timeout` if that is shorter.
        """
        wanted = (rendezvous, rank, world_size)
        if self._joined != wanted or not dist.is_initialized():
            self.leave()
            _close_memory(for_good=True)
            limit = min(timeout, LIMIT)
            store: Store = rendezvous.endpoint.open(world_size, limit)
            # Wait here and not in gloo, which interrupts do not reach.
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
        """Shut down connections to other hosts, so that whoever waits for a silent rank gets an error. Any thread may call this."""
        links.shut_down()
        if _connector is not None:
            _connector.cut()

    def leave(self) -> None:
        """Leave the group, so that ranks waiting in one of its collectives get an error.

        The caller must have dropped its reducers: a reducer that is freed while the group is destroyed holds the GIL while it joins a
        thread that needs it. Reducers in reference cycles are collected first.
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
    """Return the memory that the ranks of this process's group share, if any."""
    return _near


def mailbox(memory: SharedMemory, ranks: Sequence[int]) -> Mailbox:
    """Return a mailbox for some of the ranks that `memory` connects. Collective."""
    assert _connector is not None
    return _connector.mailbox(memory, ranks)


def connector() -> Connector | None:
    """Return the connector of this process's group, if any."""
    return _connector


def shared_memory_among(ranks: Sequence[int]) -> SharedMemory:
    """Return the memory of some of the ranks, including this one, numbered by their positions in `ranks`.

    Collective among these ranks on the first call. All ranks must be connected already.

    Raises
    ------
    RuntimeError
        The ranks cannot share memory.
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
    """Let ranks that wait for this one get an error: it takes part in no further exchange but has not left yet."""
    _end_exchanges()
    links.shut_down()


def _end_exchanges() -> None:
    for memory in (_near, *_among.values()):
        if memory is not None:
            memory.close()


def _close_memory(*, for_good: bool = False) -> None:
    """End exchanges over memory; with `for_good`, also stop other hosts from reading open files, which stay readable after an error."""
    global _near, _store, _connector
    _end_exchanges()
    _near = _store = None
    _among.clear()
    if for_good and _connector is not None:
        _connector.close()
        _connector = None


def all_come(store: Store, *, rank: int, world_size: int, limit: timedelta, says: str = "") -> list[str]:
    """Wait until all ranks have come to `store`, and return what each of them `says`, in rank order. Can be interrupted.

    Raises
    ------
    DistStoreError
        A rank has not come within `limit`.
    """
    store.set(f"here/{rank}", says)
    places = [f"here/{other}" for other in range(world_size)]
    wait_for(store, places, limit=limit)
    return [store.get(place).decode() for place in places]


def gpu_of(device: torch.device) -> str:
    """Return an identifier of this process's GPU, unique across hosts; empty on CPUs."""
    return f"{socket.gethostname()}/{os.environ.get('CUDA_VISIBLE_DEVICES', '')}/{device.index or 0}" if device.type == "cuda" else ""


def backend_for(device: torch.device, gpus: Sequence[str]) -> str:
    """Return PyTorch's backends for ranks on `device`; `gpus` are the results of :func:`gpu_of` on all ranks.

    NCCL refuses two ranks on one GPU. Gloo carries the tensors of such ranks, through host memory.
    """
    if device.type != "cuda":
        return "gloo"
    return "cpu:gloo,cuda:nccl" if len(set(gpus)) == len(gpus) else "cpu:gloo,cuda:gloo"
