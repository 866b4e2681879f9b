"""A cluster over several hosts: its controller beside the notebook, behind CURVE, and its engines below the agents of their hosts."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import ClusterError
from ...protocol import EngineInfo
from ..base import Progress
from ..devices import DevicePlan
from ..folders import sweep
from ..launch_config import CONTROLLER_ARGUMENTS, controller_module
from ..launcher import Member, ProcessLauncher
from ..local import WARM_MODULES, LocalCluster
from ..startup import Arrival
from .folder_token import folder_token
from .host_processes import HostProcesses
from .remote_host import RemoteHost
from .store_server import StoreEndpoint, StoreServer


class HostCluster(LocalCluster):
    """Engines on hosts whose agents have come up, each on what its agent has planned.

    Parameters
    ----------
    hosts : sequence of RemoteHost
        Ended with the cluster.
    plans : sequence of (RemoteHost, DevicePlan)
        In rank order.
    address : str
        Of this host, as the others reach it.

    Attributes
    ----------
    release : callable
        Called once all has ended: gives back what the agents ran in.
    """

    release: Callable[[], None] = staticmethod(lambda: None)
    spans_hosts = True
    can_be_inherited = False

    def __init__(self, hosts: Sequence[RemoteHost], plans: Sequence[tuple[RemoteHost, DevicePlan]], address: str) -> None:
        self._store = StoreServer(address)
        super().__init__(HostProcesses)
        assert isinstance(self._processes, HostProcesses)
        self._hosts, self._processes.hosts = list(hosts), list(hosts)
        self._launcher = HostLauncher(self._processes, self._folders, WARM_MODULES, hosts=self._hosts, plans=plans, address=address)
        for host in hosts:
            host.on_event, host.on_lost = self._processes.take, self._processes.lose

    @classmethod
    def start_on(
        cls,
        hosts: Sequence[RemoteHost],
        plans: Sequence[tuple[RemoteHost, DevicePlan]],
        address: str,
        *,
        limit: timedelta,
        on_progress: Progress | None,
    ) -> HostCluster:
        """Start a controller and the engines, and wait until all answer; where they do not come up nothing is left running."""
        sweep()
        cluster = cls(hosts, plans, address)
        try:
            cluster._start([plan for _, plan in plans], cluster._arrival(on_progress, limit))
        except BaseException:  # an interrupt as well
            cluster.stop()
            raise
        return cluster

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[EngineInfo]:
        """The engines in rank order."""
        return [
            replace(found, host=host.name if (host := self._host_of(found.rank)) is not None else found.host) for found in super().engines
        ]

    @property
    def lost_hosts(self) -> list[str]:
        """The hosts that were lost."""
        return [host.name for host in self._hosts if host.lost]

    def rendezvous_endpoint(self) -> StoreEndpoint:
        """Return a place in the notebook's process where the ranks of one generation meet."""
        return self._store.endpoint()

    def last_words(self, rank: int) -> str:
        """Return what the engine of `rank` wrote last."""
        host = self._host_of(rank)
        if host is None or host.lost:
            return ""
        with suppress(ClusterError):
            text: str = host.ask("log_tail", name=self._members[rank].name)["text"]
            return text
        return ""

    def why_lost(self, rank: int) -> str:
        """Return why the engine of `rank` has ended where its host is the reason."""
        host = self._host_of(rank)
        if host is None or not host.lost:
            return ""
        kept = "" if host.facts.get("shares_folder") or rank else ", and with it the files that the cell has written there"
        return f"the host {host.name} is lost{kept}: {host.lost}"

    def _host_of(self, rank: int) -> RemoteHost | None:
        assert isinstance(self._processes, HostProcesses)
        return self._processes.host_of(self._members[rank].name)

    # -- what can be done -------------------------------------------------------------------------------------------

    def prepare_spare(self) -> bool:
        """Keep no engine in reserve: on each host one is forked in milliseconds."""
        return False

    def renew(self, *, limit: timedelta, on_progress: Progress | None = None) -> bool:  # noqa: ARG002  # the base's
        """Do not: agents know of one controller alone."""
        return False

    def stop(self) -> None:
        """End every process of the cluster on every host."""
        super().stop()
        self._store.close()
        self.release()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let hosts that are silent be lost soon, until the end of the ``with`` block."""
        for host in self._hosts:
            host.work(is_on=True)
        try:
            yield
        finally:
            for host in self._hosts:
                host.work(is_on=False)

    # -- files of the folder of buffers, which each host has for itself ----------------------------------------------

    def send_files(self, names: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Let files of `blob_dir` be on every host, sent once to each that has them not.

        Raises
        ------
        ClusterError
            A host has no room for them.
        """
        missing = self._missing(names)
        total = sum((self.blob_dir / name).stat().st_size for found in missing.values() for name in found)
        sent = 0

        def count(num_bytes: int) -> None:
            nonlocal sent
            sent += num_bytes
            if on_progress is not None:
                on_progress(sent, total)

        def send(host: RemoteHost) -> None:
            for name in missing.get(host, ()):
                with _mapped(self.blob_dir / name) as data:
                    host.put(name, data, count)
            # Answered behind all of it: what is not there then could not be written.
            if left := host.missing(missing.get(host, ())):
                raise ClusterError(f"{host.name} has no room for what the cell needs there ({len(left)} of its buffers).")

        list(self._on_each(send))

    def spread_files(self, names: Sequence[str]) -> bool:
        """Let files of `blob_dir` be on every host that any of them has; return whether that can be."""
        missing = self._missing(names)
        if self.find_files(list(dict.fromkeys(name for found in missing.values() for name in found))):
            return False
        self.send_files(names)
        return True

    def _missing(self, names: Sequence[str]) -> dict[RemoteHost, list[str]]:
        return {host: found for host, found in self._on_each(lambda host: host.missing(names)) if found}

    def journal(self, path: Path, run_id: str) -> Path:
        """Return where rank 0 notes what a run does to files: on its own host where the notebook's folder is not there."""
        host = self._host_of(0)
        is_there = host is not None and host.facts["shares_folder"] and path.is_relative_to(Path.cwd())
        return path if is_there else self.blob_dir / f".files-{run_id}"

    def fetch_files(self, names: Sequence[str], rank: int) -> None:
        """Let files of `blob_dir` be here that the engine of `rank` has made; a `ClusterError`: they cannot be had."""
        names = [name for name in names if not (self.blob_dir / name).exists()]
        if not names:
            return
        host = self._host_of(rank)
        if host is None:
            raise ClusterError(f"The engine of rank {rank} has not come up.")
        self._fetch(names, host)

    def pass_file(self, name: str, *, source: int, target: int) -> None:
        """Let the host of rank `target` have a file of `blob_dir` that the engine of rank `source` has made."""
        there, here = self._host_of(source), self._host_of(target)
        if there is None or here is None or there is here:
            return
        self._fetch([name], there)
        if here.missing([name]):
            with _mapped(self.blob_dir / name) as data:
                here.put(name, data)

    def find_files(self, names: Sequence[str]) -> list[str]:
        """Let files of `blob_dir` be here that any host has; return those that none has."""
        left = list(names)
        for host in self._hosts:
            if host.lost:
                continue
            with suppress(ClusterError):
                missing = set(host.missing(left))
                self._fetch([name for name in left if name not in missing], host)
            left = [name for name in left if not (self.blob_dir / name).exists()]
        return left

    def _fetch(self, names: Sequence[str], host: RemoteHost) -> None:
        for name in names:
            path = self.blob_dir / PurePosixPath(name)
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                host.get(name, path)

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove files of `blob_dir` from every host; a name may be a pattern."""
        for host in self._hosts:
            host.tell("remove", names=list(names))

    def keep_files(self, names: Sequence[str]) -> None:
        """Let other hosts have those buffers alone."""
        for host in self._hosts:
            if not host.facts["is_notebooks"]:
                host.tell("keep", names=list(names))

    def _on_each(self, action: Callable[[RemoteHost], Any]) -> Iterator[tuple[RemoteHost, Any]]:
        """Do something on all hosts at once; those that are lost meanwhile are left out."""

        def attempt(host: RemoteHost) -> tuple[RemoteHost, Any, ClusterError | None]:
            try:
                return host, action(host), None
            except ClusterError as error:
                return host, None, error

        with ThreadPoolExecutor(max_workers=len(self._hosts)) as pool:
            for host, found, error in pool.map(attempt, [host for host in self._hosts if not host.lost]):
                if error is None:
                    yield host, found
                elif not host.lost:
                    raise error

    # -- how it starts -----------------------------------------------------------------------------------------------

    def _connect(self, arrival: Arrival) -> None:
        connection = arrival.of_file(self._launcher.connection_files[1])
        for host in self._hosts:
            host.tell("connect", connection=connection)
        super()._connect(arrival)


class HostLauncher(ProcessLauncher):
    """Starts the controller here and engines on their hosts.

    Parameters
    ----------
    hosts : list of RemoteHost
    plans : sequence of (RemoteHost, DevicePlan)
        Where each rank belongs.
    address : str
        Of this host, as the others reach it.
    """

    def __init__(self, *args: Any, hosts: list[RemoteHost], plans: Sequence[tuple[RemoteHost, DevicePlan]], address: str) -> None:
        super().__init__(*args)
        self._hosts, self._address = hosts, address
        self._at = {plan.rank: host for host, plan in plans}

    def start_cluster(self, plans: Sequence[DevicePlan]) -> list[Member]:
        """Let the agents make ready for engines, and start a controller and an engine for each plan."""
        with folder_token() as token, ThreadPoolExecutor(max_workers=len(self._hosts)) as pool:
            list(pool.map(lambda host: self._begin(host, token), self._hosts))
        return self.start_controller(plans)

    def _begin(self, host: RemoteHost, token: Path | None) -> None:
        host.facts |= host.ask(
            "begin",
            blobs=str(self._folders.blobs),
            address=host.facts["address"],
            marker=self.marker,
            cwd=str(Path.cwd()),
            token=None if token is None else token.name,
            modules=list(self._modules),
            hash_seed=self._environment["PYTHONHASHSEED"],
        )

    def _controller_command(self) -> list[str]:
        where = ("--IPController.transport=tcp", f"--IPController.ip={self._address}", "--IPController.enable_curve=True")
        others = [argument for argument in CONTROLLER_ARGUMENTS if ".location=" not in argument]
        return [*controller_module(), *where, f"--IPController.location={self._address}", *others]

    def start_engine(self, plan: DevicePlan, engine_id: int | None = None) -> Member:
        """Start one more engine: on its rank's host, or where that is lost on the one that has the fewest."""
        member = Member(plan=plan, engine_id=self._new_id(engine_id))
        host = self._at[plan.rank]
        if host.lost:
            alive = [other for other in self._hosts if not other.lost]
            if not alive:
                raise ClusterError(f"No host is left: {'; '.join(f'{other.name}: {other.lost}' for other in self._hosts)}.")
            count = Counter(at.name for at in self._at.values())
            host = self._at[plan.rank] = min(alive, key=lambda other: count[other.name])
        assert isinstance(self._processes, HostProcesses)
        self._processes.start_engine(host, member.engine_id, plan)
        return member


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()
