"""The environment variables and command lines of a cluster's processes."""

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

# Keep freed memory in the process: by default, glibc returns blocks of 32 MB and more to the system, which clears every page again for the
# next step. Engines return it when they are idle (`engine/memory.py`).
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
# Use 2 MB pages for the heap if the system has them on request: one page fault for each of these instead of for every 4 kB.
LARGE_PAGES = "glibc.malloc.hugetlb"
BLOBS = "JUPYTER_DTRAIN_BLOBS"
# Prefixes of variables that belong to the kernel's process (Jupyter's parent watch, ipyparallel's settings for another cluster).
NOT_PASSED_ON = ("JPY_", "IPP_")
# Prefixes of variables that the loader, Python, PyTorch and NumPy read when they are loaded. If one has changed, engines cannot be forked
# from an earlier process. Libraries that the notebook imports set some variables without effect.
READ_ONCE = (
    *("LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "PYTHON"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH", "ATEN_", "C10_", "NPY_", "NUMPY_", "JUPYTER_DTRAIN_KEEP_"),
)
WHATEVER = ("TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


def process_environment(folders: Folders, *, marker: str, connection_file: Path) -> dict[str, str]:
    """Return the environment of controller and engines: the kernel's own, with all of IPython's files in `folders`.

    Parameters
    ----------
    folders : Folders
        The cluster's folders.
    marker : str
        A unique name of the cluster.
    connection_file : Path
        Where the controller will write the connection information for engines.
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
            "PYTHONUNBUFFERED": "1",  # the log's last lines explain a death
            "MASTER_ADDR": "127.0.0.1",
            # c10d prints two lines for each slice of a wait.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            # Sets of strings then have the same order on all engines: a vocabulary made in the cell numbers words alike.
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "random").replace("random", "0"),
        }
    )
    if interface := loopback_interface():
        # Otherwise gloo and NCCL resolve the host's name, and listen on that address.
        for library in ("GLOO", "NCCL", "TP"):
            environment[f"{library}_SOCKET_IFNAME"] = interface
    return environment


def _tunables(given: str) -> str:
    """Return glibc's tunables: the user's, with large pages unless these set them."""
    return given if LARGE_PAGES in given else ":".join(filter(None, [given, f"{LARGE_PAGES}=1"]))


def own_environment() -> dict[str, str]:
    """Return this process's environment for another process, with this package importable."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
    root = str(Path(__file__).parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
    return environment


def loopback_interface() -> str | None:
    """Return the name of the interface with address 127.0.0.1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == "127.0.0.1" for address in addresses):
            return name
    return None


# Names and command lines of a cluster's processes.

CONTROLLER = "controller"
TEMPLATE = "template"
CONTROLLER_ARGUMENTS = (
    "--IPController.location=127.0.0.1",  # otherwise every client would ask DNS for this host's name
    "--IPController.use_threads=True",  # one process instead of seven; the relays are C threads either way
    "--IPController.db_class=NoDB",  # otherwise the controller would keep every task and result in memory
    "--HeartMonitor.period=150",  # milliseconds; an engine is registered at its first heartbeat
    "--HeartMonitor.max_heartmonitor_misses=400",  # a minute: the guard notices deaths, and a busy host is not dead
)
ENGINE_ARGUMENTS = (
    "--IPEngine.enable_nanny=False",
    "--IPEngine.max_heartbeat_misses=0",  # the guard ends engines whose controller or kernel is gone
    "--InteractiveShellApp.exec_PYTHONSTARTUP=False",
)


def controller_command(sockets: Path) -> list[str]:
    """Return the command line of the controller, whose sockets' paths begin with `sockets`."""
    # For ipc, address and port are the two parts of a socket's path.
    where = ("--IPController.transport=ipc", f"--IPController.ip={sockets}")
    return [*controller_module(), *where, *CONTROLLER_ARGUMENTS]


def controller_module() -> list[str]:
    """Return the beginning of a controller's command line."""
    return [sys.executable, "-m", f"{__package__}.controller_app"]


def template_command(modules: Sequence[str]) -> list[str]:
    """Return the command line of the template, which imports `modules`."""
    return [sys.executable, "-m", f"{__package__}.forkserver", *modules]


def engine_command(engine_id: int) -> list[str]:
    """Return the command line of an engine that requests this id."""
    return [sys.executable, "-m", f"{__package__}.engine_app", f"--IPEngine.id={engine_id}", *ENGINE_ARGUMENTS]


def engine_name(engine_id: int) -> str:
    """Return the name of an engine's process."""
    return f"engine-{engine_id}"


def id_of(name: str) -> int:
    """Return the id of the engine whose process has this name."""
    return int(name.removeprefix("engine-"))
