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
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..errors import ClusterError
from ..protocol import EngineInfo
from . import folders as folder_files
from .arrival import NEXT_STEP, STEP, Arrival, PortTaken, Progress
from .commands import CONTROLLER, TEMPLATE, controller_command, engine_command, engine_name, id_of, template_command
from .devices import DevicePlan, plan_devices
from .environment import process_environment
from .processes import GuardedProcesses
from .registration import unregister
from .spare import Spare

if TYPE_CHECKING:
    from ..options import ClusterOptions

WARM_MODULES = ("torch", "torch.distributed", "torch.utils.data", "cloudpickle", "jupyter_dtrain.engine.worker")


class EngineCluster:
    """A controller and its engines on this machine, all on loopback. Made by `start`.

    Attributes
    ----------
    client : ipyparallel.Client
        The connection to the engines.
    engine_ids : list of int
        ipyparallel's engine ids in rank order.
    engines : list of EngineInfo
        The engines in rank order.
    device_plans : list of DevicePlan
        What each rank computes on.
    private_dir, blob_dir : Path
        The cluster's folders (mode 0700), removed when it stops. `blob_dir` is for large buffers: in shared
        memory where there is enough of it. A rendezvous by file belongs into `private_dir`.
    """

    client: Any

    def __init__(self, device_plans: Sequence[DevicePlan]) -> None:
        self.device_plans = list(device_plans)
        self.engine_ids: list[int] = []
        self._next_id = 0  # of the next engine: the first ones' are their ranks
        self._names = [engine_name(plan.rank) for plan in self.device_plans]  # of the ranks' processes
        self.engines: list[EngineInfo] = []
        self.client = None
        self._kernel = os.getpid()
        self._stopped = False
        self._stop_lock = threading.Lock()
        self._warm: Any = None
        self._let_go: list[DevicePlan] = []  # what is nobody's since its engine was lost
        self._spare = Spare(
            start=lambda: self._start_engine(self.device_plans[0]),
            has_ended=lambda name: name in self._processes.statuses,
            is_registered=lambda engine_id: engine_id in self.client.ids,
            warm_up=self._warm_up,
        )
        self._folders = folder_files.Folders()
        self._marker = uuid.uuid4().hex
        folders = [self.private_dir, self.blob_dir]
        try:
            self._processes = GuardedProcesses(folders, on_exit=self._on_exit)
        except BaseException:
            self._folders.remove()
            raise
        atexit.register(self.stop)

    @classmethod
    def start(cls, options: ClusterOptions, *, on_progress: Progress | None = None) -> EngineCluster:
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
            cluster = cls(plans)
            try:
                cluster._start(cluster._arrival(on_progress, timedelta(seconds=deadline - time.monotonic())))
                return cluster
            except PortTaken as error:
                # The controller picks free ports and binds them a moment later: once in a while someone is quicker.
                cluster.stop()
                if attempt == 2:
                    raise ClusterError(f"{error} Start the cluster again.") from None
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

    @property
    def view(self) -> Any:
        """A ``DirectView`` of all engines in rank order."""
        return self.client.direct_view(self.engine_ids)

    @property
    def alive(self) -> bool:
        """Whether the controller and every engine are running."""
        return bool(self.engine_ids) and self.controller_alive and not self.dead_ranks()

    @property
    def warm(self) -> bool:
        """Whether every engine has imported torch; if not, a cell waits for the rest of that import."""
        return self._warm is not None and self._warm.ready()

    @property
    def controller_alive(self) -> bool:
        """Whether engines can be reached at all."""
        return not self._stopped and self._processes.guard_alive and CONTROLLER not in self._processes.statuses

    def dead_ranks(self) -> list[int]:
        """Return the ranks whose engine has ended, or cannot be reached any more because the controller has."""
        if not self.controller_alive:
            return [plan.rank for plan in self.device_plans]
        return [rank for rank, name in enumerate(self._names) if name in self._processes.statuses]

    def pids(self) -> dict[str, int]:
        """Return the pids of the guard, the controller and the engines by name."""
        return {"guard": self._processes.guard_pid, **self._processes.pids}

    def exit_status(self, rank: int) -> int | None:
        """Return with what status the engine of `rank` has ended, negative for a signal; ``None``: it has not, as far as is known."""
        return self._processes.statuses.get(self._names[rank])

    def log_tail(self, rank: int) -> str:
        """Return the last lines that the engine of `rank` wrote to its log."""
        return self._folders.log_tail(self._names[rank])

    def cpu_time(self, rank: int) -> float | None:
        """Return the seconds that the engine of `rank` has computed, ``None`` if it is gone."""
        try:
            times = psutil.Process(self._processes.pids[self._names[rank]]).cpu_times()
        except (psutil.Error, KeyError):
            return None
        return float(times.user + times.system)

    # -- what can be done -------------------------------------------------------------------------------------------

    def wait_warm(self, limit: timedelta) -> bool:
        """Wait until the engines have imported torch, at most `limit`; return whether they have (or one is dead)."""
        deadline = time.monotonic() + limit.total_seconds()
        while not self.warm and self.alive and time.monotonic() < deadline:
            time.sleep(STEP.total_seconds())
        return self.warm or not self.alive

    def send_signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to the engines of `ranks` (all by default): works for one that answers no messages any more."""
        for rank in range(len(self.device_plans)) if ranks is None else ranks:
            self._processes.signal(self._names[rank], number)

    def replace(self, ranks: Sequence[int], *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """Put other engines in the place of those of `ranks`, which have ended, and wait until they have imported torch.

        Raises
        ------
        ClusterError
            They did not come up.
        """
        arrival = self._arrival(on_progress, limit)
        for rank in ranks:
            self._processes.forget(self._names[rank])
            self._names[rank] = self._spare.take() or self._start_engine(self.device_plans[rank])
            self.engine_ids[rank] = id_of(self._names[rank])
        arrival.of_engines(self.engine_ids)
        from .warm import take_place

        tasks = [self._warm_up([self.engine_ids[rank] for rank in ranks])]
        for rank in ranks:
            self.engines[rank] = self._engine_info(self.device_plans[rank])
            tasks.append(self.client[self.engine_ids[rank]].apply_async(take_place, self.device_plans[rank].environment()))
        arrival.of(lambda: all(task.ready() for task in tasks), lambda: "the new engine imports torch")

    def restart(self, ranks: Sequence[int], *, limit: timedelta, on_progress: Progress | None = None) -> None:
        """End the engines of `ranks` and put others in their place; a `ClusterError` where these do not come up."""
        deadline = time.monotonic() + limit.total_seconds()
        self.send_signal(signal.SIGKILL, ranks)
        while left := set(ranks).difference(self.dead_ranks()):
            if time.monotonic() > deadline:
                raise ClusterError(f"The engine of rank {min(left)} cannot be ended.{NEXT_STEP}")
            self._processes.wait_change(STEP)
        self.replace(ranks, limit=limit, on_progress=on_progress)

    def prepare_spare(self) -> bool:
        """See to it that an engine is in reserve; return whether it is ready. Does not wait; to be called again and again."""
        self._spare.prepare()
        return self._spare.ready

    def let_go(self, ranks: Sequence[int]) -> None:
        """Do without the engines of `ranks`, for which no other has come up; those behind them move up."""
        kept = [rank for rank in range(len(self.device_plans)) if rank not in ranks]
        self.send_signal(signal.SIGKILL, ranks)  # one may only be slow
        self._let_go += [self.device_plans[rank] for rank in ranks]
        self.device_plans = [replace(self.device_plans[rank], rank=number) for number, rank in enumerate(kept)]
        self._names = [self._names[rank] for rank in kept]
        self.engine_ids[:] = [self.engine_ids[rank] for rank in kept]
        self.engines = [self._engine_info(plan) for plan in self.device_plans]

    def take_back(self) -> bool:
        """Let the engine in reserve be one more rank, the last one; return whether there is one that lives."""
        name = self._spare.take()
        if name is None:
            return False
        plan = replace(self._let_go.pop(), rank=len(self.device_plans))
        self.device_plans.append(plan)
        self._names.append(name)
        self.engine_ids.append(id_of(name))
        self.engines.append(self._engine_info(plan))
        from .warm import take_place

        self.client[id_of(name)].apply_async(take_place, plan.environment())
        return True

    def missing_ranks(self) -> list[int]:
        """Return the ranks whose engine has ended or has not come up."""
        dead, there = self.dead_ranks(), self.client.ids
        return [rank for rank, engine_id in enumerate(self.engine_ids) if rank in dead or engine_id not in there]

    def stop(self) -> None:
        """End every process of the cluster and remove its folders. Calling it again does nothing."""
        if os.getpid() != self._kernel:
            return  # a fork of the kernel that leaves: the cluster is not its own
        with self._stop_lock:
            if self._stopped:
                return
            self._stopped = True
        atexit.unregister(self.stop)
        self._processes.stop()
        if self.client is not None:
            with contextlib.suppress(Exception):
                self.client.close(linger=0)
        self._folders.remove()  # done by the guard, unless someone killed it

    # -- how it starts ----------------------------------------------------------------------------------------------

    def _start(self, arrival: Arrival) -> None:
        num_engines = len(self.device_plans)
        arrival.tell(f"starting {num_engines} engine{'s' if num_engines > 1 else ''}")
        folders = self._folders
        security = folders.profile / "security"
        files = [security / f"ipcontroller-{kind}.json" for kind in ("client", "engine")]
        environment = process_environment(folders, marker=self._marker, connection_file=files[1])
        self._environment = environment
        # Elsewhere a fork of a process with torch in it is not safe, and for GPUs it takes more care than has been tried.
        if sys.platform == "linux" and all(plan.kind == "cpu" for plan in self.device_plans):
            self._processes.start(
                TEMPLATE,
                template_command(WARM_MODULES),
                env={**environment, **self.device_plans[0].environment()},
                cwd=Path.cwd(),
                log=folders.log_of(TEMPLATE),
                how="template",
            )
        # The controller's folder is its own, so that a file beside the notebook named like a module is not imported.
        self._processes.start(CONTROLLER, controller_command(), env=environment, cwd=folders.private, log=folders.log_of(CONTROLLER))
        for plan in self.device_plans:
            self._start_engine(plan)
        import ipyparallel  # while the processes import it too

        connection = arrival.of_file(files[0])
        folder = str(folders.profile)
        while self.client is None:
            arrival.check()
            with contextlib.suppress(TimeoutError):
                self.client = ipyparallel.Client(connection, profile_dir=folder, ipython_dir=folder, timeout=min(5.0, arrival.seconds_left))
        ids = [plan.rank for plan in self.device_plans]  # an engine asks for its rank as its id
        arrival.of_engines(ids)
        self.engine_ids = ids
        self.engines = [self._engine_info(plan) for plan in self.device_plans]
        self._warm = self._warm_up(ids)
        arrival.tell(f"{num_engines} of {num_engines} engines up")

    def _arrival(self, tell: Progress | None, limit: timedelta) -> Arrival:
        """Return what waits, until `limit` from now, for processes to come up, and tells how far that is."""
        return Arrival(
            self._processes,
            log_tail=self._folders.log_tail,
            names=self._names,
            registered=lambda: self.client.ids if self.client is not None else None,
            tell=tell,
            limit=limit,
        )

    def _start_engine(self, plan: DevicePlan) -> str:
        engine_id, self._next_id = self._next_id, self._next_id + 1
        name = engine_name(engine_id)
        self._processes.start(
            name,
            engine_command(engine_id),
            env={**self._environment, **plan.environment()},
            cwd=Path.cwd(),
            log=self._folders.log_of(name),
            how="fork",
        )
        return name

    def _engine_info(self, plan: DevicePlan) -> EngineInfo:
        return EngineInfo(
            rank=plan.rank,
            host=socket.gethostname(),
            pid=self._processes.pids[self._names[plan.rank]],
            device=plan.device,
            device_name=plan.name,
        )

    def _warm_up(self, engine_ids: list[int]) -> Any:
        from .warm import warm_up

        view = self.client.direct_view(engine_ids)
        view.block = False
        return view.apply_async(warm_up, WARM_MODULES)

    # -- what happens meanwhile -------------------------------------------------------------------------------------

    def _on_exit(self, name: str, _status: int) -> None:
        """Tell the controller that an engine is gone (as its nanny would), so that whoever waits for it gets an error."""
        if self._stopped or self.client is None or not name.startswith("engine-"):
            return
        with contextlib.suppress(Exception):
            unregister(self.client, id_of(name))
