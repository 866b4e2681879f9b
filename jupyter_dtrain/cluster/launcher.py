"""Start the processes of a cluster below its guard, and keep which engine is which rank."""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol import EngineInfo
from .abstract_processes import Processes
from .devices import DevicePlan
from .folders import Folders
from .launch_config import CONTROLLER, TEMPLATE, controller_command, engine_command, engine_name, process_environment, template_command


@dataclass(kw_only=True)
class Member:
    """An engine of the cluster.

    Attributes
    ----------
    plan : DevicePlan
        Its rank and device.
    engine_id : int
        Its id in ipyparallel.
    warming : ipyparallel.AsyncResult, optional
        The task in which it imports torch, once it was submitted.
    has_place : bool
        Whether it has become its rank: false while it replaces a lost engine.
    """

    plan: DevicePlan
    engine_id: int
    warming: Any = None
    has_place: bool = True

    @property
    def name(self) -> str:
        """Name of its process."""
        return engine_name(self.engine_id)

    @property
    def warm(self) -> bool:
        """Whether it has imported torch."""
        return self.warming is not None and self.warming.ready()

    def info(self, pids: Mapping[str, int]) -> EngineInfo:
        """Return its public description; its pid is 0 while `pids` does not have it."""
        plan = self.plan
        pid = pids.get(self.name, 0)
        return EngineInfo(rank=plan.rank, host=socket.gethostname(), pid=pid, device=plan.device, device_name=plan.name)


class ProcessLauncher:
    """Start the controller and engines of one cluster, without waiting for them.

    Parameters
    ----------
    processes : Processes
    folders : Folders
    modules : sequence of str
        Modules that engines will import.
    environment : mapping of str to str, optional
        Environment of the processes; by default this process's own, with what they need to find each other.

    Attributes
    ----------
    environment : mapping of str to str
        Environment of the processes.
    marker : str
        A unique name of the cluster.
    connection_files : tuple of Path
        The controller's connection files for clients and for engines.
    """

    def __init__(
        self, processes: Processes, folders: Folders, modules: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._processes, self._folders, self._modules = processes, folders, modules
        self.marker = uuid.uuid4().hex
        self._next_id = 0  # of the next engine: the first ids are the ranks
        self._num_controllers = 0
        security = folders.profile / "security"
        self.connection_files = (security / "ipcontroller-client.json", security / "ipcontroller-engine.json")
        self.environment = environment or process_environment(folders, marker=self.marker, connection_file=self.connection_files[1])

    def start_cluster(self, plans: Sequence[DevicePlan]) -> list[Member]:
        """Start a controller and an engine for each plan."""
        self.start_template(plans)
        return self.start_controller(plans)

    def start_template(self, plans: Sequence[DevicePlan]) -> None:
        """Start the template, if engines can be forked."""
        # On other systems a fork with torch loaded is unsafe; forking for GPUs has not been tried.
        if sys.platform == "linux" and all(plan.kind == "cpu" for plan in plans):
            self._processes.start(
                TEMPLATE,
                template_command(self._modules),
                env={**self.environment, **plans[0].environment()},
                cwd=Path.cwd(),
                log=self._folders.log_of(TEMPLATE),
                how="template",
            )

    def start_controller(self, plans: Sequence[DevicePlan]) -> list[Member]:
        """Start a controller, perhaps in place of an ended one, and an engine for each plan."""
        for file in self.connection_files:
            file.unlink(missing_ok=True)  # otherwise new engines would connect to the old one
        # New sockets: clients that have not noticed the old controller's end must not reach the new one.
        self._num_controllers += 1
        command = self._controller_command()
        # In a private folder: in the notebook's, a file named like a module would be imported.
        folder, log = self._folders.private, self._folders.log_of(CONTROLLER)
        self._processes.start(CONTROLLER, command, env=self.environment, cwd=folder, log=log)
        return [self.start_engine(plan) for plan in plans]

    def _controller_command(self) -> list[str]:
        return controller_command(self._folders.sockets / f"zmq{self._num_controllers}")

    def _new_id(self, engine_id: int | None) -> int:
        engine_id = self._next_id if engine_id is None else engine_id
        self._next_id = engine_id + 1
        return engine_id

    def start_engine(self, plan: DevicePlan, engine_id: int | None = None) -> Member:
        """Start one more engine, by default with the next id."""
        member = Member(plan=plan, engine_id=self._new_id(engine_id))
        self._processes.start(
            member.name,
            engine_command(member.engine_id),
            env={**self.environment, **plan.environment()},
            cwd=Path.cwd(),
            log=self._folders.log_of(member.name),
            how="fork",
        )
        return member
