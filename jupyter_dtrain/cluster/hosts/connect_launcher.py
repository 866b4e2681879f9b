"""Launcher for an existing ipyparallel cluster: an agent beside its engines on each host, and our engines below the agent.

That cluster, started by SSH, MPI or a scheduler, has engines where ours shall be. The first engine of each host starts an agent, and is
free again. The cluster's engines stay when ours have ended.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from ..base import Progress
from . import foreign_engine, host_agent
from .agent_launcher import AgentLauncher, Agents
from .agent_streams import VARIABLE
from .dialed_link import DialedLink, invitation
from .remote_host import LEAVE, LOGIN, RemoteHost

ANSWERED = timedelta(seconds=5)
"""Time for a controller and idle engines to answer."""
ENGINES_SAY = "the cluster that you connect to says how many engines there are"


class ConnectLauncher(AgentLauncher):
    """Start agents through the engines of the cluster that ``--connect`` or ``--profile`` names."""

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options that name no cluster, or a number of engines."""
        super().check_cluster(options)
        if options.num_engines is not None:
            raise UsageError(f"--engines {options.num_engines}: {ENGINES_SAY}.")
        connection_file(options)

    def try_agents(self, options: ClusterOptions, tell: Progress) -> Agents:
        """Let one engine of each host start an agent there."""
        tell("connecting to the cluster")
        file = connection_file(options)
        with _connected(file) as client:
            return _started(_starts(client, file, options), client, tell)


def connection_file(options: ClusterOptions) -> Path:
    """Return the connection file for clients of the cluster; raise a `UsageError` if there is none."""
    if options.connect is not None:
        file = Path(options.connect).expanduser()
        if not file.is_file():
            raise UsageError(
                f"--connect {options.connect}: there is no such file. Name the ipcontroller-client.json that the controller has written."
            )
        return file
    if options.profile is None:
        raise UsageError("--launcher connect needs --connect FILE, the cluster's ipcontroller-client.json, or --profile NAME.")
    from IPython.core.profiledir import ProfileDir, ProfileDirError
    from IPython.paths import get_ipython_dir

    try:
        security = Path(ProfileDir.find_profile_dir_by_name(get_ipython_dir(), options.profile).security_dir)
    except ProfileDirError:
        raise UsageError(f"--profile {options.profile}: there is no such IPython profile in {get_ipython_dir()}.") from None
    found = sorted(security.glob("ipcontroller*-client.json"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise UsageError(
            f"--profile {options.profile}: it has no running cluster. `ipcluster start --profile={options.profile}` starts one."
        )
    return found[-1]


@contextmanager
def _connected(file: Path) -> Iterator[Any]:
    """Yield a client."""
    import ipyparallel

    gone = f"The controller of {file} does not answer ({{}}). The cluster may have ended: start it again."
    try:
        told = json.loads(file.read_text())
        url, tunnel = str(told["interface"]), told.get("ssh")
        if url.startswith("tcp://") and not tunnel:  # a client would retry for ever
            address = ipyparallel.util.disambiguate_ip_address(url.removeprefix("tcp://"), told.get("location"))
            socket.create_connection((address, told["registration"]), ANSWERED.total_seconds()).close()
    except OSError as error:
        raise ClusterError(gone.format(error.strerror or error)) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{file} is not a connection file of an ipyparallel cluster: give its ipcontroller-client.json.") from None
    asks_nobody: dict[str, Any] = {"password": False} if tunnel else {}
    try:
        client = ipyparallel.Client(str(file), timeout=ANSWERED.total_seconds(), **asks_nobody)
    except Exception as error:  # a time-out, or an error of the tunnel
        raise ClusterError(gone.format(str(error).partition("\n")[0] or type(error).__name__)) from None
    try:
        yield client
    finally:
        client.close()


def _ask(client: Any, engine: int, function: str, *arguments: Any) -> Any:
    """Call a function of `foreign_engine` on an engine."""
    source = Path(foreign_engine.__file__).read_text()
    names = {"__name__": foreign_engine.__name__}
    known = {"source": source, "names": names, "function": function, "arguments": arguments}
    return client[engine].apply_async(eval, foreign_engine.CALL, known)


class _Start:
    """The start of an agent beside the `engines` of one host."""

    def __init__(self, name: str, engines: Sequence[int], python: str) -> None:
        self.engines, self.python = engines, python
        self.asked: Any = None
        self.link = DialedLink(self.words)
        self.host = RemoteHost(name, self.link, python=python)

    def words(self) -> list[str]:
        """Return the output of an agent that has not come up."""
        if self.asked is None or not self.asked.ready():
            return []
        try:
            return list(self.asked.get(0))
        except Exception as error:  # whatever has happened to its engine
            return [f"its engine could not start an agent: {error}"]


def _starts(client: Any, file: Path, options: ClusterOptions) -> list[_Start]:
    """Return one start per host with engines, in the engines' order."""
    if not client.ids:
        raise ClusterError(f"The cluster of {file} has no engines: start them first.")
    asked = {engine: _ask(client, engine, foreign_engine.facts.__name__) for engine in client.ids}
    end = time.monotonic() + ANSWERED.total_seconds()
    for result in asked.values():
        result.wait(max(0.0, end - time.monotonic()))
    if silent := [engine for engine, result in asked.items() if not result.ready()]:
        client.abort(asked.values(), targets=silent, block=False)
        raise ClusterError(
            f"Engines {', '.join(map(str, silent))} of {file} do not answer. They may be busy: try again when they are idle."
        )
    at: dict[tuple[str, str], list[int]] = {}
    pythons: dict[tuple[str, str], str] = {}
    for engine, result in asked.items():
        try:
            told: Mapping[str, str] = result.get(0)
        except Exception as error:  # it has died
            raise ClusterError(f"Engine {engine} of {file} does not answer: {error}.") from None
        where = told["host"], told["machine"]
        at.setdefault(where, []).append(engine)
        pythons.setdefault(where, options.remote_python or told["python"])
    names = [name for name, _ in at]
    unique = [name if names.count(name) == 1 else f"{name}#{number}" for number, name in enumerate(names)]
    return [_Start(name, at[where], pythons[where]) for name, where in zip(unique, at, strict=True)]


def _started(starts: Sequence[_Start], client: Any, tell: Progress) -> Agents:
    try:
        for one in starts:
            variables = {VARIABLE: invitation([one.link])}
            do = foreign_engine.start_agent.__name__
            one.asked = _ask(client, one.engines[0], do, one.python, host_agent.__name__, variables, LOGIN.total_seconds())
        end = time.monotonic() + LOGIN.total_seconds() + LEAVE.total_seconds()
        while (coming := [one for one in starts if not one.host.is_up and not one.host.lost]) and time.monotonic() < end:
            tell(f"{sum(one.host.is_up for one in starts)} of {len(starts)} agents are up")
            for one in coming:
                if one.words():
                    one.host.give_up()
            time.sleep(0.05)
        found = Agents([], [])
        for one in starts:
            try:
                one.host.wait_up(timedelta(seconds=1), waited=LOGIN)
            except ClusterError as error:
                found.errors.append(str(error))
                one.host.end()
            else:
                found.hosts.append(one.host)
                found.num_engines.append(len(one.engines))
    except BaseException:  # an interrupt as well
        for one in starts:
            one.host.begin_end()
            one.link.kill()
        raise
    return found
