"""The client of a Dask cluster that a notebook has: on an engine it is one of the same cluster.

Which client computes collections, each process knows by itself, and what `persist` has put into the cluster is found by no other way.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from contextlib import suppress
from typing import Any, ClassVar

from ..protocol import CLUSTER_VARIABLE
from .base import Integration, Setting

TIMEOUT = 10.0
"""Seconds in which a scheduler answers."""
_MODULE = "distributed.client"

_own: Any = None  # what this process has connected by itself


def present_cluster() -> tuple[str, bytes] | None:
    """Return how another process reaches the cluster that collections are computed by now; ``None`` if there is none that others reach."""
    client = _present()
    return None if client is None or _why_not(client) else _way_to(client)


def join_cluster(way: tuple[str, bytes] | None) -> None:
    """Have collections be computed by this cluster; ``None``: by what they were computed by before."""
    if way is None:
        _leave()
    else:
        _connected(*way)


def reduced_client(obj: Any) -> Any:
    """Return how a client or a future reduces: as one of the same cluster. ``NotImplemented`` for all else."""
    module: Any = sys.modules.get(_MODULE)
    if module is None or not isinstance(obj, (module.Client, module.Future)):
        return NotImplemented
    client = obj.client if isinstance(obj, module.Future) else obj
    if client is None:  # a future of no cluster yet is a name, and no more
        return NotImplemented
    if why_not := _why_not(client):
        raise TypeError(f"cannot pickle {type(obj).__name__!r} object: {why_not}")
    return (_connected, _way_to(client)) if client is obj else (_future, (*_way_to(client), obj.key))


def _present() -> Any:
    module: Any = sys.modules.get(_MODULE)
    with suppress(ValueError):  # there is none
        return module.default_client() if module is not None else None


def _why_not(client: Any) -> str | None:
    """Return why no other process can connect to the cluster of `client`."""
    if client.asynchronous or client.status != "running":
        return f"it is {'asynchronous' if client.asynchronous else client.status}"
    if client.scheduler.address.startswith("inproc:"):
        return "its scheduler is reached from its own process alone (processes=True makes one that others reach)"
    if client.cluster is not None and CLUSTER_VARIABLE in os.environ:
        return "its cluster ends with the cell that has made it"
    return None


def _way_to(client: Any) -> tuple[str, bytes]:
    return client.scheduler.address, pickle.dumps(client.security)


def _connected(address: str, security: bytes) -> Any:
    """Return the client of the cluster at `address`: the present one, if it is of this."""
    global _own
    module: Any = importlib.import_module(_MODULE)
    client = _present()
    if client is not None and client.status == "running" and client.scheduler.address == address:
        return client
    _leave()
    _own = module.Client(address, security=pickle.loads(security), timeout=TIMEOUT)
    return _own


def _future(address: str, security: bytes, key: Any) -> Any:
    client = _connected(address, security)
    future = importlib.import_module(_MODULE).Future(key, client)
    client._send_to_scheduler({"op": "client-desires-keys", "keys": [key], "client": client.id})  # as `Variable.get` does
    return future


def _leave() -> None:
    global _own
    if _own is not None:
        with suppress(Exception):  # its scheduler may be gone
            _own.close(timeout=TIMEOUT)
        _own = None


class Dask(Integration):
    """Clients and futures reduce to those of the same cluster; the notebook's cluster is that of its cells."""

    settings: ClassVar = {"Client": Setting(get=present_cluster, set=join_cluster)}

    def reduce(self, obj: Any) -> Any:
        """Return how a client or a future reduces."""
        return reduced_client(obj)


INTEGRATION = Dask()
