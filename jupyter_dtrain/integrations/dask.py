"""Give engines a client of the same Dask cluster as the notebook's client.

Each process has its own current client, and only through it are collections found that `persist` has put into the cluster.

A scheduler releases futures that no client wants. An engine's client is closed with its cell, before the notebook has read the results. So
an engine tells the scheduler that the notebook's client wants the futures that it sends.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import pickle
import re
import sys
from contextlib import suppress
from typing import Any, ClassVar

from ..errors import UsageError
from ..protocol import CLUSTER_VARIABLE, HOST_VARIABLE
from .base import Integration, Setting

TIMEOUT = 10.0
"""Seconds for a scheduler to respond."""
_MODULE = "distributed.client"

Way = tuple[str, bytes, str]
"""A scheduler's address, its pickled security settings, and the id of the notebook's client."""

_refusing: Any = None  # dask setting that raises an error, while collections cannot be computed here
_own: Any = None  # the client that this module has connected
_notebooks = ""  # id of the notebook's client; in the notebook, that of `_own`
_theirs: set[Any] = set()  # keys of futures that came from the notebook
_sent: set[Any] = set()  # keys of other futures that were sent to it


def present_cluster() -> Way | None:
    """Return how other processes connect to the current cluster; ``None`` if there is none that they can reach."""
    client = _present()
    return None if client is None or _why_not(client) else _way_to(client)


def join_cluster(way: Way | None) -> None:
    """Compute collections on this cluster; with ``None``, as before."""
    _compute_as_before()
    if way is None:
        _leave()
    elif why_not := _why_out_of_reach(way[0]):
        _refuse_to_compute(why_not)
    else:
        _connected(*way)


def reduced_client(obj: Any) -> Any:
    """Return a reduction of a client or a future to one of the same cluster; ``NotImplemented`` for anything else."""
    module: Any = sys.modules.get(_MODULE)
    if module is None or not issubclass(type(obj), (module.Client, module.Future)):
        return NotImplemented
    client = obj.client if isinstance(obj, module.Future) else obj
    if client is None:  # a future without a client is only a key
        return NotImplemented
    if why_not := _why_not(client):
        raise TypeError(f"cannot pickle {type(obj).__name__!r} object: {why_not}")
    if client is obj:
        return _connected, _way_to(client)
    if client is _own:
        _keep(obj.key)
    return _future, (*_way_to(client), obj.key)


def _present() -> Any:
    module: Any = sys.modules.get(_MODULE)
    with suppress(ValueError):  # there is no client
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


def _why_out_of_reach(address: str) -> str | None:
    """Return why this process, on another host than the notebook's, cannot reach the scheduler at `address`; ``None`` if it may."""
    found = re.search(r"//(?:\[(.+?)\]|([^:/]+))", address)
    host = (found[1] or found[2]) if found is not None else ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if HOST_VARIABLE not in os.environ or not is_loopback:
        return None
    return (
        f"Dask's scheduler is at {address}, which is reached from the notebook's host alone, and engines are on others. Make its cluster "
        'listen to them (LocalCluster(host="…") with the host\'s own address), or close the client: each host then computes by itself.'
    )


def _refuse_to_compute(why_not: str) -> None:
    """Raise this error for any computation in this process: a cell without computations does not need the cluster."""
    global _refusing

    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError(why_not)

    _refusing = importlib.import_module("dask.config").set(scheduler=refuse)


def _compute_as_before() -> None:
    global _refusing
    refusing, _refusing = _refusing, None
    if refusing is not None:
        refusing.__exit__(None, None, None)


def _way_to(client: Any) -> Way:
    return client.scheduler.address, pickle.dumps(client.security), _notebooks if client is _own else client.id


def _connected(address: str, security: bytes, notebooks: str) -> Any:
    """Return a client of the cluster at `address`: the current one if it is connected to it, else a new one."""
    global _own, _notebooks
    if why_not := _why_out_of_reach(address):
        raise UsageError(why_not)
    module: Any = importlib.import_module(_MODULE)
    client = _present()
    if client is not None and client.status == "running" and client.scheduler.address == address:
        return client
    _leave()
    _own = module.Client(address, security=pickle.loads(security), timeout=TIMEOUT)
    _notebooks = notebooks if CLUSTER_VARIABLE in os.environ else _own.id
    return _own


def _future(address: str, security: bytes, notebooks: str, key: Any) -> Any:
    client = _connected(address, security, notebooks)
    future = importlib.import_module(_MODULE).Future(key, client)
    _tell(client, "client-desires-keys", key, client.id)  # as `Variable.get` does
    if client is _own and key not in _sent:
        _theirs.add(key)
    return future


def _keep(key: Any) -> None:
    """Make the notebook's client want a future, and release earlier ones of snapshots that no longer exist."""
    for gone in [one for one in _sent if one not in _own.futures]:
        _sent.remove(gone)
        _tell(_own, "client-releases-keys", gone, _notebooks)
    if key not in _theirs | _sent:
        _sent.add(key)
        _tell(_own, "client-desires-keys", key, _notebooks)


def _tell(client: Any, what: str, key: Any, wanted_by: str) -> None:
    client._send_to_scheduler({"op": what, "keys": [key], "client": wanted_by})


def _leave() -> None:
    global _own
    if _own is not None:
        with suppress(Exception):  # its scheduler may be gone
            _own.close(timeout=TIMEOUT)
        _own = None
        _theirs.clear()
        _sent.clear()


class Dask(Integration):
    """Clients and futures reduce to those of the same cluster; cells use the notebook's cluster."""

    settings: ClassVar = {"Client": Setting(get=present_cluster, set=join_cluster)}

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of a client or a future."""
        return reduced_client(obj)


INTEGRATION = Dask()
