"""Facts about a host: package versions, processor, memory and addresses."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import time
from pathlib import Path

from ...errors import ClusterError
from ..devices import cpu_name
from .frames import Header

LIBRARIES = ("torch", "ipyparallel", "numpy", "cloudpickle")
"""Packages whose versions must equal the notebook's: they pickle what is sent, and compute the same numbers."""


def versions() -> dict[str, str]:
    """Return the versions of this process's packages by name; empty texts for missing packages."""
    own = sys.modules[str(__package__).partition(".")[0]].__version__
    found = {"jupyter_dtrain": own, "Python": ".".join(platform.python_version_tuple()[:2])}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def facts_of_host() -> Header:
    """Return the facts about this process's host that the notebook needs."""
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return {
        "host": socket.gethostname(),
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "resolves": _resolved(socket.gethostname()),
        "versions": versions(),
        "python": sys.executable,
        "processor": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "shared_memory": shared.free if shared is not None else 0,
        "time": time.time(),
    }


def _resolved(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""


def interface_of(address: str) -> str:
    """Return the name of the network interface with `address`."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return name
    raise ClusterError(f"none of its interfaces has the address {address} of the login: the address is translated on the way (NAT)")
