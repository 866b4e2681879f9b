"""Start engines on several hosts through their agents, and the controller beside the notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...errors import ClusterError
from ..devices import DevicePlan
from ..launch_config import CONTROLLER_ARGUMENTS, controller_module
from ..launcher import Member, ProcessLauncher
from .folder_token import folder_token
from .host_checks import findings_of
from .host_processes import HostProcesses
from .remote_host import RemoteHost


class HostLauncher(ProcessLauncher):
    """Start the controller here and engines on their hosts.

    Parameters
    ----------
    hosts : list of RemoteHost
    plans : sequence of (RemoteHost, DevicePlan)
        The host of each rank.
    address : str
        This host's address, as the others reach it.
    linger : bool
        Whether hosts that a scheduler takes away wait for the notebook to let them go.
    """

    def __init__(
        self, *args: Any, hosts: list[RemoteHost], plans: Sequence[tuple[RemoteHost, DevicePlan]], address: str, linger: bool = False
    ) -> None:
        super().__init__(*args)
        self._hosts, self._address, self._linger = hosts, address, linger
        self._at = {plan.rank: host for host, plan in plans}

    def start_cluster(self, plans: Sequence[DevicePlan]) -> list[Member]:
        """Prepare the agents, and start a controller and an engine for each plan."""
        self._begin_all()
        return self.start_controller(plans)

    def _begin_all(self) -> None:
        with folder_token() as token, ThreadPoolExecutor(max_workers=len(self._hosts)) as pool:
            list(pool.map(lambda host: self._begin(host, token), self._hosts))

    def move(self, to: Mapping[RemoteHost, RemoteHost]) -> None:
        """Prepare the agents of new hosts, each for the ranks of a lost one."""
        engines = Counter(self._at.values())
        for lost, host in to.items():
            self._plan(host, max(engines[lost], 1))
        self._at = {rank: to[host] for rank, host in self._at.items()}
        self._begin_all()

    def take_in(self, lost: RemoteHost, host: RemoteHost, num_engines: int) -> list[DevicePlan]:
        """Prepare the agent of a host that was `lost` for `num_engines` engines; raise a `ClusterError` if that fails."""
        others = [other for other in self._hosts if not other.lost]
        if problems := [finding.sentence for finding in findings_of([*others, host], self._address, new=[host]) if finding.is_fatal]:
            raise ClusterError(" ".join(problems))
        if not lost.facts.get("is_notebooks"):  # the former agent ends by itself, and may just have begun to
            host.ask("outlive", folder=str(self._folders.blobs))
        plans = self._plan(host, num_engines)
        with folder_token() as token:
            self._begin(host, token)
        return plans

    def _plan(self, host: RemoteHost, num_engines: int) -> list[DevicePlan]:
        told = host.ask("plan", num_engines=num_engines, device="cpu", devices="exclusive", force=True, part=(0, 1))
        host.facts["address"] = host.facts["address"] or self._address  # this host
        return [DevicePlan(**plan) for plan in told["plans"]]

    def _begin(self, host: RemoteHost, token: Path | None) -> None:
        host.facts |= host.ask(
            "begin",
            blobs=str(self._folders.blobs),
            address=host.facts["address"],
            marker=self.marker,
            cwd=str(Path.cwd()),
            token=None if token is None else token.name,
            modules=list(self._modules),
            hash_seed=self.environment["PYTHONHASHSEED"],
            lingers=self._linger,
        )

    def _controller_command(self) -> list[str]:
        where = ("--IPController.transport=tcp", f"--IPController.ip={self._address}", "--IPController.enable_curve=True")
        others = [argument for argument in CONTROLLER_ARGUMENTS if ".location=" not in argument]
        return [*controller_module(), *where, f"--IPController.location={self._address}", *others]

    def start_engine(self, plan: DevicePlan, engine_id: int | None = None) -> Member:
        """Start one more engine: on its rank's host, or if that is lost, on the host with the fewest engines."""
        member = Member(plan=plan, engine_id=self._new_id(engine_id))
        host = self._at[plan.rank]
        if host.lost:
            alive = [other for other in self._hosts if not other.lost]
            if not alive:
                raise ClusterError(f"No host is left: {'; '.join(f'{other.name}: {other.lost}' for other in self._hosts)}.")
            count = Counter(at.name for at in self._at.values())
            host = self._at[plan.rank] = min(alive, key=lambda other: count[other.name])
        self._start_on(host, member)
        return member

    def start_in_reserve(self, host: RemoteHost, plan: DevicePlan) -> Member:
        """Start a spare engine on a host."""
        member = Member(plan=plan, engine_id=self._new_id(None))
        self._start_on(host, member)
        return member

    def _start_on(self, host: RemoteHost, member: Member) -> None:
        assert isinstance(self._processes, HostProcesses)
        self._processes.start_engine(host, member.engine_id, member.plan)

    def place(self, rank: int, host: RemoteHost) -> None:
        """Record that the engine of `rank` is on `host`."""
        self._at[rank] = host

    def drop(self, ranks: Sequence[int]) -> None:
        """Record that `ranks` have no engines any more, and that higher ranks have moved up."""
        self._at = dict(enumerate(host for rank, host in sorted(self._at.items(), key=lambda item: item[0]) if rank not in ranks))
