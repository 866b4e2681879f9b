"""The environment variables of a cluster's processes."""

from __future__ import annotations

import os
import site
import socket
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ..protocol import CLUSTER_VARIABLE
from .engine_app import CONNECTION_FILE

if TYPE_CHECKING:
    from .folders import Folders

# What a step frees stays with the process for the next one, as far as glibc is asked: by default it returns a block of 32 MB or more to the
# system, which then clears every page of the next step's anew. Engines give it back when they are idle (`engine/idle.py`).
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
# Its heap in pages of 2 MB where the system has them on request: new memory then costs a fault for each of these, and not for every 4 kB.
LARGE_PAGES = "glibc.malloc.hugetlb"
BLOBS = "JUPYTER_DTRAIN_BLOBS"
# What belongs to the kernel's own process (Jupyter's parent watch, ipyparallel's settings for another cluster).
NOT_PASSED_ON = ("JPY_", "IPP_")


def process_environment(folders: Folders, *, marker: str, connection_file: Path) -> dict[str, str]:
    """Return the environment that controller and engines share: the kernel's own, with everything of IPython's in `folders`.

    Parameters
    ----------
    folders : Folders
        The cluster's folders.
    marker : str
        A name of the cluster that no other has.
    connection_file : Path
        Where the controller will put what engines need to connect.
    """
    environment = (
        MALLOC
        | own_environment()
        | {
            CLUSTER_VARIABLE: marker,
            BLOBS: str(folders.blobs),
            CONNECTION_FILE: str(connection_file),
            "GLIBC_TUNABLES": _tunables(os.environ.get("GLIBC_TUNABLES", "")),
            "IPYTHONDIR": str(folders.profile),
            "IPP_PROFILE_DIR": str(folders.profile),
            "PYTHONUNBUFFERED": "1",  # the log's last lines are what explains a death
            "MASTER_ADDR": "127.0.0.1",
            # A wait that goes on in slices is no news: c10d prints two lines for each slice.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            # A set of texts has the same order on all engines: a vocabulary made in the cell numbers words alike.
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "random").replace("random", "0"),
        }
    )
    if interface := loopback_interface():
        # Between engines too: gloo and NCCL look up the host's name otherwise, and listen on what it resolves to.
        for library in ("GLOO", "NCCL", "TP"):
            environment[f"{library}_SOCKET_IFNAME"] = interface
    return environment


def _tunables(given: str) -> str:
    """Return what is asked of glibc: what the user has, and large pages, if nothing is said of those."""
    return given if LARGE_PAGES in given else ":".join(filter(None, [given, f"{LARGE_PAGES}=1"]))


def own_environment() -> dict[str, str]:
    """Return this process's environment, for another that is to find this package: also on a path that this process alone has."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    root = str(Path(__file__).parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
    return environment


def loopback_interface() -> str | None:
    """Return the name of the interface that has 127.0.0.1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == "127.0.0.1" for address in addresses):
            return name
    return None
