"""Ways to train on two processes from a notebook, and what they are compared with.

Each contender is warm where it can be: processes that stay between cells are started, and hold model and data if they can, before the
time is taken. It runs from the moment at which the cell is sent (the script is started) to the first finished step.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jupyter_client.manager import KernelManager

from .jobs import IMPORTS, STAMPS, Job

LIMIT = 180.0  # seconds for any cell or script
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MKL_NUM_THREADS": "1"}  # torchrun's own default, and loopback
PEERS = ["accelerate", "nbdistributed"]
BEFORE = "before: "


@dataclass(frozen=True)
class Timing:
    """Seconds to the end of the first step, steps per second after it, and seconds until the notebook (or shell) has everything back."""

    first_step: float
    rate: float
    whole: float


class Contender(ABC):
    """One way to train. `folder` is where it runs."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def prepare(self, job: Job) -> None:
        """Do what is done before the time is taken."""

    @abstractmethod
    def start(self, job: Job) -> str:
        """Train, and return what was shown."""

    @abstractmethod
    def close(self) -> None:
        """End what was started, in :meth:`prepare` too."""

    def measure(self, job: Job) -> Timing:
        """Train and return how long it took."""
        stamps = self.folder / STAMPS
        stamps.unlink(missing_ok=True)
        began = time.time()
        shown = self.start(job)
        ended = time.time()
        if not stamps.exists():
            raise RuntimeError(shown)
        times = json.loads(stamps.read_text())
        return Timing(times[0] - began, (len(times) - 1) / (times[-1] - times[0]), ended - began)


class Kernel:
    """A notebook's kernel that one cell after the other is run in."""

    def __init__(self, folder: Path, *, python: str = sys.executable, env: Mapping[str, str] | None = None) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.is_idle = True  # no cell runs that took too long
        spec = self.manager.kernel_spec
        assert spec is not None
        spec.argv[0] = python
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, **(env or {})})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)

    def run(self, code: str, limit: float | None = LIMIT, *, on_text: Callable[[str], None] = lambda _text: None) -> str:
        """Run a cell and return what it printed; a `TimeoutError`: it took longer than `limit` seconds, and goes on.

        `on_text` gets what is printed, at once.
        """
        printed: list[str] = []

        def note(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                on_text(printed[-1])

        self.is_idle = False
        reply = self.client.execute_interactive(code, timeout=limit, output_hook=note, allow_stdin=False)
        self.is_idle = True
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join([*reply["content"].get("traceback", [])[-3:], *printed[-3:]]))
        return "".join(printed)

    def process_id(self) -> int:
        """Return the number of the kernel's process."""
        return int(self.run("import os; print(os.getpid())"))

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=not self.is_idle)


class InKernel(Contender):
    """A contender that is a cell magic (or nothing) in a kernel of its own.

    Class attributes say how: `load` is run once, `before` stands above the cell that makes model and data, `above` above the timed one.
    """

    load = ""
    before = ""
    above = ""

    def __init__(self, folder: Path, *, python: str = sys.executable, env: Mapping[str, str] = ENVIRONMENT) -> None:
        super().__init__(folder)
        self.kernel = Kernel(folder, python=python, env=env)
        if self.load:
            self.kernel.run(self.load)

    def prepare(self, job: Job) -> None:
        self.kernel.run(self.before + IMPORTS + job.setup)

    def start(self, job: Job) -> str:
        return self.kernel.run(self.above + self.source(job))

    def source(self, job: Job) -> str:
        """Return the cell."""
        return job.by_hand

    def close(self) -> None:
        self.kernel.close()


class OneProcess(InKernel):
    """The cell in the notebook's own process, with all cores."""

    name = "one process"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, env={})

    def source(self, job: Job) -> str:
        return job.cell


class Ours(InKernel):
    """The same cell under ``%%distribute``, on engines that are up."""

    name = "%%distribute"
    load = "%load_ext jupyter_dtrain\n%distribute start -n 2 --device cpu"
    above = "%%distribute --engines 2 --device cpu\n"

    def __init__(self, folder: Path, *, env: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(folder, env=env)

    def prepare(self, job: Job) -> None:
        super().prepare(job)
        self.kernel.run(self.above + "None")  # as after any cell before: the engines have torch

    def source(self, job: Job) -> str:
        return job.cell


class OursCold(Contender):
    """Everything in one cell under ``%%distribute``, the first of a kernel that has just started."""

    name = "%%distribute, cold"
    kernel: Kernel | None = None

    def __init__(self, folder: Path, *, env: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(folder)
        self.env = env

    def prepare(self, _job: Job) -> None:
        self.close()
        self.kernel = Kernel(self.folder, env=self.env)
        self.kernel.run("%load_ext jupyter_dtrain")

    def start(self, job: Job) -> str:
        assert self.kernel is not None
        return self.kernel.run(Ours.above + IMPORTS + job.setup + job.cell)

    def close(self) -> None:
        if self.kernel is not None:
            self.kernel.close()
            self.kernel = None


class Torchrun(Contender):
    """A script under ``torchrun``."""

    name = "torchrun"

    def prepare(self, job: Job) -> None:
        (self.folder / "script.py").write_text(job.script)

    def start(self, _job: Job) -> str:
        options = ["--nproc-per-node=2", "--standalone", "--local-addr=127.0.0.1", "script.py"]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *options],
            cwd=self.folder,
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return done.stderr

    def close(self) -> None:
        pass  # it has ended


class Peer(InKernel):
    """A contender that is installed for the comparison."""

    def __init__(self, folder: Path) -> None:
        python = peers_python()
        super().__init__(folder, python=str(python), env={**ENVIRONMENT, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"})


class NotebookLauncher(Peer):
    """accelerate's ``notebook_launcher``, which forks the kernel."""

    name = "notebook_launcher"
    load = IMPORTS + "from accelerate import Accelerator, DataLoaderConfiguration, notebook_launcher"

    def source(self, job: Job) -> str:
        return job.for_accelerate


class NbDistributed(Peer):
    """nbdistributed's ``%%distributed``."""

    name = "nbdistributed"
    load = "%load_ext nbdistributed\n%dist_init -n 2"
    before = above = "%%distributed\n"


class Px(InKernel):
    """ipyparallel's own ``%%px``, with the process group made by hand."""

    name = "%%px"
    load = """
import socket
import ipyparallel as ipp
with socket.create_server(("127.0.0.1", 0)) as listener:
    port = str(listener.getsockname()[1])
cluster = ipp.Cluster(n=2)
engines = cluster.start_and_connect_sync()
engines[:].apply_sync(lambda folder: __import__("os").chdir(folder), __import__("os").getcwd())
for rank, engine in enumerate(engines):
    engine.apply_sync(lambda rank, port: __import__("os").environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port), rank, port)
engines[:].execute("import torch.distributed as dist; dist.init_process_group('gloo')", block=True)
"""
    before = above = "%%px\n"

    def close(self) -> None:
        try:
            self.kernel.run("cluster.stop_cluster_sync()", limit=20)
        finally:
            super().close()


def of_another_time(checkout: Path) -> list[Callable[[Path], Contender]]:
    """Return `Ours` and `OursCold` as they are in another checkout of this project, and here."""
    env = {"PYTHONPATH": str(checkout)}

    class Before(Ours):
        name = BEFORE + Ours.name

        def __init__(self, folder: Path) -> None:
            super().__init__(folder, env=env)

    class BeforeCold(OursCold):
        name = BEFORE + OursCold.name

        def __init__(self, folder: Path) -> None:
            super().__init__(folder, env=env)

    return [Before, Ours, BeforeCold, OursCold]


ALL: list[Callable[[Path], Contender]] = [OneProcess, Ours, OursCold, Torchrun, NotebookLauncher, NbDistributed, Px]


def peers_python() -> Path:
    """Return the interpreter of a virtual environment with the peers, which sees this project's packages too: torch is there once."""
    folder = Path(__file__).parent / ".venv"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        purelib = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
        ).stdout.strip()
        Path(purelib, "project.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        # Without what they depend on: that is the project's own, and a kernel needs no whole Jupyter beside it.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PEERS], check=True)
        done.touch()
    return python
