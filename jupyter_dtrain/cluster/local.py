"""A cluster of local engines: started in about two seconds, stopped with nothing left behind.

ipyparallel's own ``Cluster`` takes seven: it pauses between controller and engines, and an engine counts as
registered only after the controller's next heartbeat, three seconds apart by default. Here controller and engines start
side by side with one environment per rank, and the guard (``guard.py``) is their parent, so a killed kernel
leaves no orphan. The client is ipyparallel's; everything that talks to engines uses its API.
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
    """A controller and its engines on this machine, connected by Unix sockets. Made by `start`.

    Attributes
    ----------
    private_dir, blob_dir : Path
        The cluster's folders (mode 0700), removed when it stops. `blob_dir` is for large buffers: in shared
        memory where there is enough of it.
    """

    def __init__(self, processes: MakeProcesses) -> None:
        self._kernel = os.getpid()
        self._stopped = False
        self._stop_lock = threading.Lock()
        self._is_renewed = False  # just now: it can be reached when all of it can
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
            How many engines, on what, and how long to wait for them.
        on_progress : callable, optional
            Gets a short sentence about what is going on, at least each second.

        Raises
        ------
        UsageError
            The machine does not have the devices that `options` asks for.
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
                # Somebody has killed a process, or the system has.
                cluster.stop()
                if attempt == 2:
                    raise
            except BaseException:  # an interrupt as well: nothing half-started stays
                cluster.stop()
                raise
        raise AssertionError("both attempts return or raise")

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def private_dir(self) -> Path:
        """Folder of connection files and logs."""
        return self._folders.private

    @property
    def blob_dir(self) -> Path:
        """Folder for large buffers that the engines of this host share."""
        return self._folders.blobs

    def rendezvous_endpoint(self) -> Endpoint:
        """Return a file by which the ranks of one generation meet."""
        for left in self._folders.rendezvous.glob("*"):  # by ranks that were killed; others have removed theirs
            left.unlink(missing_ok=True)
        return FileEndpoint(self._folders.rendezvous / uuid.uuid4().hex)

    @property
    def controller_alive(self) -> bool:
        """Whether engines can be reached at all."""
        is_there = not self._stopped and self._processes.guard_alive and CONTROLLER not in self._processes.statuses
        return is_there and not self._is_renewed

    @property
    def unreachable(self) -> str:
        """Why engines cannot be reached at all; empty where they can be."""
        who = "the controller of the engines" if self._processes.guard_alive else "the process that watches over the engines"
        return "" if self.controller_alive else f"{who} has ended"

    @property
    def has_folders(self) -> bool:
        """Whether its folders are there: systems clean their places for temporary files and shared memory at times."""
        return self._folders.are_there

    # -- what can be done -------------------------------------------------------------------------------------------

    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:
        """Start another controller, and engines that find what the old ones have left; not where the guard is gone as well.

        PyTorch is imported already where they are forked from, which a new cluster would wait for.
        """
        if self._stopped or not self._processes.guard_alive:
            return False
        self._is_renewed = True
        arrival = self._arrival(on_progress, limit)
        # The one in reserve as well: none can be told anything any more, and they would compute beside the new ones.
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
        """Start workers of Dask beside the engines, and let them compute the notebook's collections."""
        self._dask.start(number, limit=limit, on_progress=on_progress)

    def stop(self) -> None:
        """End every process of the cluster and remove its folders. Calling it again does nothing."""
        if os.getpid() != self._kernel:
            return  # a fork of the kernel that leaves: the cluster is not its own
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
        self._folders.remove()  # done by the guard, unless someone killed it

    # -- how it starts ----------------------------------------------------------------------------------------------

    def _start(self, plans: Sequence[DevicePlan], arrival: Arrival) -> None:
        arrival.tell(f"starting {len(plans)} engine{'s' if len(plans) > 1 else ''}")
        self._members = self._launcher.start_cluster(plans)
        self._connect(arrival)
        arrival.tell(f"{len(plans)} of {len(plans)} engines up")

    def _connect(self, arrival: Arrival) -> None:
        """Wait until the engines can be reached, and let them import torch."""
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

    # -- what happens meanwhile -------------------------------------------------------------------------------------

    def _on_exit(self, name: str, _status: int) -> None:
        """Tell the controller that an engine is gone (as its nanny would), so that whoever waits for it gets an error."""
        if not self.controller_alive or self.client is None or not name.startswith("engine-"):
            return
        with contextlib.suppress(Exception):
            unregister(self.client, id_of(name))
