"""A notebook on one of several hosts."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from jupyter_client.launcher import launch_kernel
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import local_provisioner

from tests.hosts.virtual_hosts import VirtualHost, VirtualHosts, why_not
from tests.notebook.conftest import IMPORTS, OPEN, nothing_left_running
from tests.notebook.kernel import Notebook

__all__ = ["lab", "notebook", "nothing_left_running"]

ROOT = Path(__file__).parents[2]


class HostNotebook(Notebook):
    """A notebook whose kernel runs on `host`, in its folder `folder`."""

    def __init__(self, host: VirtualHost, lab: VirtualHosts, folder: str) -> None:
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHON_COLORS": "0", "IPYTHONDIR": f"{folder}/.ipython"}
        variables["SLURM_CONF"] = str(lab.folder / "slurm/slurm.conf")

        def launch(cmd: list[str], *, env: dict[str, str], cwd: str, **options: Any) -> Any:
            return launch_kernel(host.argv(cmd, env=variables, cwd=folder), cwd="/", **options)

        name = f"kernel-{secrets.token_hex(4)}"
        # Through files, as this process is not in the host's network.
        manager = KernelManager(kernel_name="python3", transport="ipc", connection_file=str(lab.folder / f"{name}.json"))
        manager.ip = str(lab.folder / name)
        with mock.patch.object(local_provisioner, "launch_kernel", launch):
            super().__init__(Path(folder), manager=manager)

    @property
    def process_in_host(self) -> psutil.Process:
        """The kernel, which `nsenter` has started."""
        started: Any = self.manager.provisioner
        (kernel,) = psutil.Process(started.process.pid).children()
        return kernel

    def interrupt(self) -> None:
        self.process_in_host.send_signal(signal.SIGINT)


@pytest.fixture(scope="package")
def lab():
    """Eleven hosts, the last eight of which no test needs for long: each is switched off by one."""
    if reason := why_not():
        pytest.skip(reason)
    with VirtualHosts(11, shared=[ROOT]) as hosts:
        yield hosts


@pytest.fixture(scope="package")
def notebook(lab):
    """A notebook on the first, in a folder that no other host has."""
    with opened(lab, "/root") as notebook:
        yield notebook


@contextmanager
def opened(lab: VirtualHosts, folder: str) -> Iterator[HostNotebook]:
    """A notebook of its own on the first host, which may be killed."""
    lab[0].run(["mkdir", "-p", folder])
    notebook = HostNotebook(lab[0], lab, folder)
    OPEN.append(notebook)
    try:
        notebook.run(IMPORTS)
        yield notebook
    finally:
        OPEN.remove(notebook)
        notebook.close()
