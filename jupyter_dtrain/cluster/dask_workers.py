"""Dask workers beside the engines: processes of the cluster, which end with it and compute the notebook's collections.

They are separate from engines, as an engine that runs a cell answers nothing. Scheduler and workers listen on loopback only and use TLS,
with a key made for the cluster in its private folder, as Dask by itself authenticates nobody.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ClusterError, UsageError
from .abstract_processes import Processes
from .base import Progress
from .folders import Folders
from .startup import STEP

SCHEDULER = "dask-scheduler"
WORKERS = "dask-workers"
_HOST = "127.0.0.1"
_NO_PAGES = {f"DASK_DISTRIBUTED__{kind}__HTTP__ROUTES": "[]" for kind in ("SCHEDULER", "WORKER")}
"""Disables the routes of the HTTP servers, which cannot be turned off and authenticate nobody."""


class DaskWorkers:
    """A Dask scheduler and workers, and the notebook's client of them, which becomes the default.

    Parameters
    ----------
    processes : Processes
        Of the cluster.
    folders : Folders
        Of the cluster.
    environment : mapping of str to str
        Environment of the processes.

    Attributes
    ----------
    client : distributed.Client
    number : int
        Number of workers.
    """

    def __init__(self, processes: Processes, folders: Folders, environment: Mapping[str, str]) -> None:
        self._processes, self._folders, self._environment = processes, folders, environment
        self.client: Any = None
        self.number = 0

    def start(self, number: int, *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """Start workers, and wait until they answer.

        Raises
        ------
        UsageError
            Dask is not installed, or there is another number of workers already.
        ClusterError
            They did not come up; none is left.
        """
        if self.number == number:
            return
        if self.number:
            raise UsageError(f"There are {self.number} Dask workers beside the engines. `%distribute stop` ends them.")
        try:
            from distributed import Client
            from distributed.security import Security

            security = Security.temporary()  # type: ignore[no-untyped-call]
        except ImportError as error:
            raise UsageError(f'Dask workers need a package that is not installed ({error}): pip install "jupyter_dtrain[dask]"') from None
        connect = partial(Client, security=security)
        try:
            self._start(number, connect, _pems(security), time.monotonic() + limit.total_seconds(), on_progress or (lambda _sentence: None))
        except BaseException:
            self.stop()
            raise
        self.number = number

    def _start(self, number: int, connect: Callable[..., Any], pems: Mapping[str, str], deadline: float, tell: Progress) -> None:
        folder = self._folders.private / "dask"
        folder.mkdir(mode=0o700, exist_ok=True)
        where = folder / "scheduler.json"
        where.unlink(missing_ok=True)
        tls = [argument for name, text in pems.items() for argument in (name, str(_written(folder / f"{name[6:]}.pem", text)))]
        here = (
            "--protocol",
            "tls",
            "--host",
            _HOST,
            "--no-dashboard",
            "--dashboard-address",
            f"{_HOST}:0",
            "--scheduler-file",
            str(where),
            *tls,
        )
        tell("starting Dask workers")
        self._run(SCHEDULER, "dask_scheduler", "--port", "0", *here)
        self._wait(where.exists, deadline, SCHEDULER)
        workers = ("--nworkers", str(number), "--nthreads", "1", "--local-directory", str(folder), "--name", "beside-engines")
        self._run(WORKERS, "dask_worker", *workers, *here)
        while self.client is None:
            with contextlib.suppress(OSError, ValueError):  # the file is incomplete
                self.client = connect(scheduler_file=str(where), timeout=max(1.0, deadline - time.monotonic()))
            self._wait(lambda: True, deadline, SCHEDULER)
        self._wait(lambda: len(self.client.scheduler_info(n_workers=-1)["workers"]) >= number, deadline, WORKERS)

    def _run(self, name: str, program: str, *arguments: str) -> None:
        self._processes.forget(name)
        command = [sys.executable, "-m", f"distributed.cli.{program}", *arguments]
        self._processes.start(name, command, env={**self._environment, **_NO_PAGES}, cwd=Path.cwd(), log=self._folders.log_of(name))

    def _wait(self, is_there: Any, deadline: float, name: str) -> None:
        while not is_there():
            ended = [one for one in (SCHEDULER, name) if one in self._processes.statuses]
            if ended or not self._processes.guard_alive or time.monotonic() > deadline:
                what = f"The process {ended[0]} ended" if ended else f"The process {name} did not answer in time"
                raise ClusterError(f"{what} while Dask workers were starting.\n{self._folders.log_tail(name)}".rstrip())
            self._processes.wait_change(STEP)

    def stop(self) -> None:
        """Close the client and end the workers; the cluster's guard ends what is left of them."""
        client, self.client, self.number = self.client, None, 0
        if client is not None:
            with contextlib.suppress(Exception):  # its scheduler may be gone
                client.close(timeout=1)
        for name in (WORKERS, SCHEDULER):
            self._processes.signal(name, 15)


def _pems(security: Any) -> dict[str, str]:
    return {"--tls-ca-file": security.tls_ca_file, "--tls-cert": security.tls_worker_cert, "--tls-key": security.tls_worker_key}


def _written(path: Path, text: str) -> Path:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path
