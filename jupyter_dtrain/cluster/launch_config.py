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
from .engine_app import CONNECTION_FILE, SOCKETS

if TYPE_CHECKING:
    from .folders import Folders


import sys
from collections.abc import Sequence

# What a step frees stays with the process for the next one, as far as glibc is asked: by default it returns a block of 32 MB or more to the
# system, which then clears every page of the next step's anew. Engines give it back when they are idle (`engine/memory.py`).
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
# Its heap in pages of 2 MB where the system has them on request: new memory then costs a fault for each of these, and not for every 4 kB.
LARGE_PAGES = "glibc.malloc.hugetlb"
BLOBS = "JUPYTER_DTRAIN_BLOBS"
# What belongs to the kernel's own process (Jupyter's parent watch, ipyparallel's settings for another cluster).
NOT_PASSED_ON = ("JPY_", "IPP_")
# What the system's loader, Python, PyTorch and NumPy read while they are loaded, by the beginnings of names: where one has changed,
# engines cannot be forked from a process that was started before. Libraries that the notebook imports set some that change nothing.
READ_ONCE = (
    *("LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "PYTHON"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH", "ATEN_", "C10_", "NPY_", "NUMPY_", "JUPYTER_DTRAIN_KEEP_"),
)
WHATEVER = ("TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


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
            SOCKETS: str(folders.sockets),
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


# The processes of a cluster: what they are called and how they are started.

CONTROLLER = "controller"
TEMPLATE = "template"
CONTROLLER_ARGUMENTS = (
    "--IPController.location=127.0.0.1",  # or every client would ask DNS for this host's name
    "--IPController.use_threads=True",  # one process and not seven; the relays are C threads either way
    "--IPController.db_class=NoDB",  # or the controller would keep every task and result in memory
    "--HeartMonitor.period=150",  # milliseconds; an engine is registered at its first heartbeat
    "--HeartMonitor.max_heartmonitor_misses=400",  # a minute: deaths are noticed by the guard, and a busy host is no death
)
ENGINE_ARGUMENTS = (
    "--IPEngine.enable_nanny=False",
    "--IPEngine.max_heartbeat_misses=0",  # the guard ends engines whose controller or kernel is gone
    "--InteractiveShellApp.exec_PYTHONSTARTUP=False",
)


def controller_command(sockets: Path) -> list[str]:
    """Return the command line of the controller, whose sockets' paths begin with `sockets`."""
    # What is an address and a port with TCP is the beginning and the end of a socket's path.
    where = ("--IPController.transport=ipc", f"--IPController.ip={sockets}")
    return [*controller_module(), *where, *CONTROLLER_ARGUMENTS]


def controller_module() -> list[str]:
    """Return the beginning of a controller's command line."""
    return [sys.executable, "-m", f"{__package__}.controller_app"]


def template_command(modules: Sequence[str]) -> list[str]:
    """Return the command line of the process that engines are forked from, with `modules` imported."""
    return [sys.executable, "-m", f"{__package__}.forkserver", *modules]


def engine_command(engine_id: int) -> list[str]:
    """Return the command line of an engine that asks for this id."""
    return [sys.executable, "-m", f"{__package__}.engine_app", f"--IPEngine.id={engine_id}", *ENGINE_ARGUMENTS]


def engine_name(engine_id: int) -> str:
    """Return what the process of an engine is called."""
    return f"engine-{engine_id}"


def id_of(name: str) -> int:
    """Return the id of the engine whose process is called `name`."""
    return int(name.removeprefix("engine-"))
