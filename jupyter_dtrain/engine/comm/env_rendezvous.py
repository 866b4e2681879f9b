"""``env://`` rendezvous for a cell that distributes itself, through a file instead of PyTorch's TCP store.

PyTorch's own rendezvous makes rank 0 listen on every interface of the host without authentication, and Lightning, accelerate and Hugging
Face's Trainer unpickle what they receive over it. As ``torchrun`` does, the cell gets an existing rendezvous.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlparse

from torch.distributed import FileStore, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

from ...cluster.endpoint import FileEndpoint
from ...system.patches import patched_items
from .process_group import Rendezvous, all_come

Meeting = tuple[Store, int, int]
ADDRESS = "127.0.0.1"


def free_port() -> int:
    """Return a currently free port of this host."""
    with socket.create_server((ADDRESS, 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def env_rendezvous(rendezvous: Rendezvous, environment: Mapping[str, str]) -> Iterator[None]:
    """Let ``env://`` meet at `rendezvous`, until the end of the ``with`` block.

    If the cell has changed `environment`, or has forked, it means to meet other processes, and PyTorch's own rendezvous is used.
    """
    handlers: dict[str, Any] = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    by_store = handlers["env"]
    process, numbers = os.getpid(), count()

    def by_file(url: str, timeout: timedelta = timedelta(minutes=30), **options: Any) -> Iterator[Meeting]:
        if os.getpid() != process or any(os.environ.get(name) != value for name, value in environment.items()):
            yield from by_store(url, timeout=timeout, **options)
            return
        query = parse_qs(urlparse(url).query)
        rank = int(query.get("rank", [os.environ["RANK"]])[0])
        world_size = int(query.get("world_size", [os.environ["WORLD_SIZE"]])[0])
        # A store for each group that the cell makes in turn, since a file keeps earlier keys.
        assert isinstance(rendezvous.endpoint, FileEndpoint)  # `--strategy none` runs on one host
        store = FileStore(f"{rendezvous.endpoint.path}.{next(numbers)}", world_size)
        store.set_timeout(timeout)
        all_come(store, rank=rank, world_size=world_size, limit=timeout)
        yield store, rank, world_size
        raise RuntimeError("Unable to perform rerendezvous using env:// method")  # in PyTorch's words

    with patched_items(handlers, {"env": by_file}, listed="torch.distributed.rendezvous._rendezvous_handlers"):
        yield
