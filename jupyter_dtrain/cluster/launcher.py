"""How the processes of a cluster are started, all of them by its guard, and which engine stands for which rank."""

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
        What it computes on, as which rank.
    engine_id : int
        ipyparallel's.
    warming : ipyparallel.AsyncResult, optional
        Of its import of torch, once it has been asked for that.
    has_place : bool
        Whether it is its rank: false while it takes the place of an engine that was lost.
    """

    plan: DevicePlan
    engine_id: int
    warming: Any = None
    has_place: bool = True

    @property
    def name(self) -> str:
        """What its process is called."""
        return engine_name(self.engine_id)

    @property
    def warm(self) -> bool:
        """Whether it has imported torch."""
        return self.warming is not None and self.warming.ready()

    def info(self, pids: Mapping[str, int]) -> EngineInfo:
        """Return what is told of it; as long as `pids` does not have it, its process is 0."""
        plan = self.plan
        pid = pids.get(self.name, 0)
        return EngineInfo(rank=plan.rank, host=socket.gethostname(), pid=pid, device=plan.device, device_name=plan.name)


class ProcessLauncher:
    """Starts the controller and engines of one cluster. Waits for none of them.

    Parameters
    ----------
    processes : Processes
    folders : Folders
    modules : sequence of str
        What engines will import.
    environment : mapping of str to str, optional
        Of the processes; by default this process's own, with what they need to find each other.

    Attributes
    ----------
    environment : mapping of str to str
        Of the processes.
    marker : str
        A name of the cluster that no other has.
    connection_files : tuple of Path
        What the controller writes for clients, and for engines.
    """

    def __init__(
        self, processes: Processes, folders: Folders, modules: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._processes, self._folders, self._modules = processes, folders, modules
        self.marker = uuid.uuid4().hex
        self._next_id = 0  # of the next engine: the first ones' are their ranks
        self._num_controllers = 0
        security = folders.profile / "security"
        self.connection_files = (security / "ipcontroller-client.json", security / "ipcontroller-engine.json")
        self.environment = environment or process_environment(folders, marker=self.marker, connection_file=self.connection_files[1])

    def start_cluster(self, plans: Sequence[DevicePlan]) -> list[Member]:
        """Start a controller and an engine for each plan."""
        self.start_template(plans)
        return self.start_controller(plans)

    def start_template(self, plans: Sequence[DevicePlan]) -> None:
        """Start what engines are forked from, where they can be."""
        # Elsewhere a fork of a process with torch in it is not safe, and for GPUs it takes more care than has been tried.
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
        """Start a controller, in the place of one that has ended, and an engine for each plan."""
        for file in self.connection_files:
            file.unlink(missing_ok=True)  # which would lead the new engines to the old one
        # Sockets of its own: what has not heard of the old one's end is not to take the new one for it.
        self._num_controllers += 1
        command = self._controller_command()
        # The controller's folder is its own, so that a file beside the notebook named like a module is not imported.
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
        """Start one more engine, with the next id where none is given."""
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
