"""A cluster of local engines, which starts in about two seconds and leaves nothing behind.

ipyparallel's own ``Cluster`` takes seven seconds: it pauses between controller and engines, and registers engines with the controller's
next heartbeat, three seconds apart by default. Here controller and engines start in parallel, with one environment per rank. The guard
(``guard.py``) is their parent, so a killed kernel leaves no orphans. The client is ipyparallel's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ClusterError
from . import folders as folder_files
from .abstract_processes import MakeProcesses
from .base import Progress
from .client import unregister
from .dask_workers import DaskWorkers
from .devices import DevicePlan, plan_devices
from .endpoint import Endpoint, FileEndpoint
from .guarded_processes import GuardedProcesses
from .launch_config import CONTROLLER, id_of
from .ranked_engines import RankedEngines
from .startup import Arrival, Disturbed

if TYPE_CHECKING:
    from ..cluster_options import ClusterOptions


class LocalCluster(RankedEngines):
    """A controller and its engines on this machine, connected by Unix sockets. Created by `start`.

    Attributes
    ----------
    private_dir, blob_dir : Path
        The cluster's folders (mode 0700), removed when it stops. `blob_dir` is for large buffers: in shared memory if there is enough.
    """

    def __init__(self, processes: MakeProcesses) -> None:
        self._kernel = os.getpid()
        self._stopped = False
        self._stop_lock = threading.Lock()
        self._is_renewed = False  # while it is being renewed, it counts as unreachable
        super().__init__(processes)
        self._dask = DaskWorkers(self._processes, self._folders, self._launcher.environment)
        atexit.register(self.stop)

    @classmethod
    def start(
        cls,
        options: ClusterOptions,
        *,
        on_progress: Progress | None = None,
        processes: MakeProcesses = GuardedProcesses,
    ) -> LocalCluster:
        """Start a controller and engines and wait until all engines answer.

        Parameters
        ----------
        options : ClusterOptions
            Number of engines, their devices, and how long to wait for them.
        on_progress : callable, optional
            Takes a short progress message, at least each second.

        Raises
        ------
        UsageError
            The machine does not have the devices that `options` ask for.
        ClusterError
            The engines did not come up; nothing is left running.
        """
        if sys.platform == "win32":
            raise ClusterError("Local engines need Linux or macOS. On Windows, run Jupyter inside WSL.")
        plans = plan_devices(options)
        folder_files.sweep()
        deadline = time.monotonic() + options.start_timeout.total_seconds()
        for attempt in (1, 2):
            cluster = cls(processes)
            try:
                cluster._start(plans, cluster._arrival(on_progress, timedelta(seconds=deadline - time.monotonic())))
                return cluster
            except Disturbed:
                # A process was killed by the user or the system.
                cluster.stop()
                if attempt == 2:
                    raise
            except BaseException:  # also after an interrupt
                cluster.stop()
                raise
        raise AssertionError("both attempts return or raise")

    # -- contents ------------------------------------------------------------------------------------------------------

    @property
    def private_dir(self) -> Path:
        """Folder of connection files and logs."""
        return self._folders.private

    @property
    def blob_dir(self) -> Path:
        """Folder for large buffers that the engines of this host share."""
        return self._folders.blobs

    def rendezvous_endpoint(self) -> Endpoint:
        """Return a new file as rendezvous of one generation."""
        for left in self._folders.rendezvous.glob("*"):  # files of killed ranks; other ranks remove theirs
            left.unlink(missing_ok=True)
        return FileEndpoint(self._folders.rendezvous / uuid.uuid4().hex)

    @property
    def controller_alive(self) -> bool:
        """Whether the controller is running, so that engines can be reached."""
        is_there = not self._stopped and self._processes.guard_alive and CONTROLLER not in self._processes.statuses
        return is_there and not self._is_renewed

    @property
    def unreachable(self) -> str:
        """Why engines cannot be reached; empty if they can."""
        who = "the controller of the engines" if self._processes.guard_alive else "the process that watches over the engines"
        return "" if self.controller_alive else f"{who} has ended"

    @property
    def has_folders(self) -> bool:
        """Whether the folders exist: systems sometimes clean up temporary files and shared memory."""
        return self._folders.are_there

    # -- actions -------------------------------------------------------------------------------------------------------

    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:
        """Start a new controller and engines that find the files of the old ones; return False if the guard is gone as well.

        This is faster than a new cluster, as the template has imported PyTorch already.
        """
        if self._stopped or not self._processes.guard_alive:
            return False
        self._is_renewed = True
        arrival = self._arrival(on_progress, limit)
        # The spare as well: old engines cannot be reached any more, and would compute beside the new ones.
        arrival.of_ends([name for name in self._processes.pids if name.startswith("engine-")])
        if self.client is not None:
            self.client.close(linger=0)
        self.client, self._spare = None, self._no_spare()
        plans = self.device_plans
        arrival.tell("starting another controller")
        self._processes.forget(CONTROLLER)
        self._members = self._launcher.start_controller(plans)
        self._connect(arrival)
        self._is_renewed = False
        return True

    def start_dask(self, number: int, *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """Start Dask workers beside the engines, and make the notebook's collections compute on them."""
        self._dask.start(number, limit=limit, on_progress=on_progress)

    def stop(self) -> None:
        """End every process of the cluster and remove its folders. Idempotent."""
        if os.getpid() != self._kernel:
            return  # a fork of the kernel exits: the cluster is not its own
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
        atexit.unregister(self.stop)
        self._dask.stop()
        self._processes.stop()
        if self.client is not None:
            with contextlib.suppress(Exception):
                self.client.close(linger=0)
        self._folders.remove()  # the guard does this, unless it was killed

    # -- start ---------------------------------------------------------------------------------------------------------

    def _start(self, plans: Sequence[DevicePlan], arrival: Arrival) -> None:
        arrival.tell(f"starting {len(plans)} engine{'s' if len(plans) > 1 else ''}")
        self._members = self._launcher.start_cluster(plans)
        self._connect(arrival)
        arrival.tell(f"{len(plans)} of {len(plans)} engines up")

    def _connect(self, arrival: Arrival) -> None:
        """Wait until the engines can be reached, and make them import torch."""
        import ipyparallel  # while the processes import it too

        connection = arrival.of_file(self._launcher.connection_files[0])
        folder = str(self._folders.profile)
        while self.client is None:
            arrival.check()
            with contextlib.suppress(TimeoutError):
                self.client = ipyparallel.Client(connection, profile_dir=folder, ipython_dir=folder, timeout=min(5.0, arrival.seconds_left))
        arrival.of_engines(self.engine_ids)
        for member in self._members:
            self._warm_up(member)

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_exit(self, name: str, _status: int) -> None:
        """Report an engine's death to the controller (as its nanny would), so that waiting calls fail."""
        if not self.controller_alive or self.client is None or not name.startswith("engine-"):
            return
        with contextlib.suppress(Exception):
            unregister(self.client, id_of(name))
