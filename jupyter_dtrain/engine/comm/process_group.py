"""The ranks' process group: joined once, kept across cells, and left in an order that cannot hang.

Ranks of one host that compute on CPUs are connected a second time, over shared memory (``shared_memory.py``).

Rank 0 hosts the rendezvous store. For engines of one host it listens on loopback only, through a socket that is bound
here and handed over, because a store that binds for itself listens on every interface.
"""

from __future__ import annotations

import gc
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from .peers import Peers
from .shared_memory import SharedMemory

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one generation meet. `generation` tells one group of ranks from the next."""

    host: str
    port: int
    generation: str


class ProcessGroup:
    """The membership of this process in a group of ranks."""

    def __init__(self) -> None:
        self._joined: tuple[Rendezvous, int, int] | None = None
        self._hosted: dict[str, TCPStore] = {}

    def host_store(self, generation: str, *, address: str, timeout: timedelta) -> Rendezvous:
        """Open the rendezvous store of a new generation on this process (rank 0) and say where it is."""
        self._hosted.clear()
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        self._hosted[generation] = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
        )
        return Rendezvous(address, port, generation)

    def join(self, rendezvous: Rendezvous, *, rank: int, world_size: int, device: torch.device, timeout: timedelta) -> TCPStore:
        """Be `rank` of the group that meets at `rendezvous`; does nothing where that is so already."""
        wanted = (rendezvous, rank, world_size)
        if self._joined != wanted or not dist.is_initialized():
            self.leave()
            store = self._hosted.get(rendezvous.generation)
            if store is None:
                store = TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=timeout)
            if rendezvous.host == LOOPBACK:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
                os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=world_size, timeout=timeout)
            self._joined = wanted
            self._store = store
            if device.type == "cpu" and rendezvous.host == LOOPBACK and world_size > 1:
                self._share_memory(rank, world_size, timeout)
        return self._store

    def _share_memory(self, rank: int, world_size: int, timeout: timedelta) -> None:
        global _near
        store = PrefixStore("memory", self._store)
        peers = Peers.meet(store, rank=rank, world_size=world_size, size=SharedMemory.SIZE, timeout=timeout)
        _near = None if peers is None else SharedMemory(peers)

    def leave(self) -> None:
        """Leave the group, which frees ranks that wait in one of its collectives.

        The caller has dropped its reducers: one that is dropped by the destruction itself holds the
        interpreter's lock while it joins a thread that needs it. Whatever still hangs on a cycle goes first.
        """
        global _near
        self._joined = None
        if _near is not None:
            _near.close()
            _near = None
        if dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()


_near: SharedMemory | None = None


def near() -> SharedMemory | None:
    """Return what connects the ranks of this process's group over memory, if they are all on one host."""
    return _near
