"""The agent: the notebook's representative on another host. It starts the host's engines below a guard, and transfers files.

It is started by ``ssh`` and exchanges frames over its standard streams. So engines are forked in milliseconds, deaths are noticed at
once, and nothing is left behind. When the notebook is gone, its streams end. When the network is cut, the agent ends its engines by
itself (`FENCE`), before the notebook places their ranks elsewhere (`LEASE`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import ClusterError, DtrainError
from ...protocol import HOST_VARIABLE
from ..folders import sweep
from . import agent_streams
from .agent_files import AgentFiles
from .frames import BEAT, FENCE, IDLE, MAGIC, VERSION, Header, read_frame, write_frame
from .host_facts import facts_of_host, interface_of

LOOK, SETTLES = 2.0, 0.25  # seconds between checks for a stopped guard, and before an end is reported in a job
LINGER = 60.0  # seconds until it leaves a scheduler's node at the latest, which usually kills it earlier
OF_A_STEP = r"SLURM_(STEP|TASK|NTASKS|NPROCS|PROCID|LOCALID|NODEID|GTIDS|SRUN)|OMPI_|PMIX?_|MPI_LOCAL"
"""Variables that describe this process as one of Slurm's or MPI's tasks: libraries would apply them to engines."""


class HostAgent:
    """Answer frames from `requests` on `answers`, until they end.

    Parameters
    ----------
    notebook, address : str
        Addresses of the notebook's host and of this one, as they see each other; empty if they are one host.
    settles : float
        Seconds before an end is reported: if a scheduler ends engines and agent together, the host is lost, not an engine.
    """

    def __init__(self, requests: BinaryIO, answers: BinaryIO, *, notebook: str = "", address: str = "", settles: float = 0.0) -> None:
        self._notebook, self._address, self._settles = notebook, address, settles
        self._requests, self._answers = requests, answers
        self._writing, self._ending = threading.Lock(), threading.Lock()
        self._heard, self._fence_after = time.monotonic(), IDLE
        self._ended, self._lingers = threading.Event(), False
        self._processes: Any = None
        self._launcher: Any = None
        self._kept: list[Path] = []
        self._plans: list[Any] = []
        self._files = AgentFiles(self._say)

    def serve(self) -> None:
        """Serve requests until the notebook is gone or silent; then clean up."""
        self._answers.write(MAGIC)
        self._say({"event": "hello", "version": VERSION, **facts_of_host(), "notebook": self._notebook, "address": self._address})
        for loop in (self._beat, self._fence, self._look_after_guard):
            threading.Thread(target=loop, daemon=True).start()
        try:
            while not self._ended.is_set() and (frame := read_frame(self._requests)) is not None:
                self._heard = time.monotonic()
                if frame[0]["do"] == "stop":
                    break
                self._do(*frame)
        finally:
            self._end()

    def _end(self) -> None:
        self._ended.set()
        with self._ending:  # by the first that notices; others wait for it
            if self._processes is not None:
                self._processes.stop()
            for folder in reversed(self._kept):  # the guard does this, unless it was killed
                shutil.rmtree(folder, ignore_errors=True)

    # -- events ----------------------------------------------------------------------------------------------------------

    def _say(self, header: Header, payload: bytes | memoryview = b"") -> None:
        with self._writing, contextlib.suppress(OSError, ValueError):  # nobody listens; the requests end as well
            write_frame(self._answers, header, payload)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            processes, names = self._processes, []
            if processes is not None:
                names = [name for name in list(processes.pids) if name not in processes.statuses]
            cpu = {name: processes.cpu_time(name) for name in names}
            self._say({"event": "beat", "cpu": cpu, "stopped": [name for name in names if processes.is_stopped(name)]})
            if processes is not None and not processes.guard_alive:
                self._say({"event": "unguarded"})
                self._end()  # its processes have ended with it
                os._exit(1)

    def _fence(self) -> None:
        while not self._ended.wait(BEAT / 2):
            if time.monotonic() - self._heard > self._fence_after:
                self._end()
                os._exit(1)

    def _look_after_guard(self) -> None:
        while not self._ended.wait(LOOK):
            if self._processes is not None:
                self._processes.end_stopped_guard()

    # -- requests --------------------------------------------------------------------------------------------------------

    def _do(self, header: Header, payload: bytes) -> None:
        name = f"do_{header.pop('do')}"
        action: Callable[..., Header | None] | None = getattr(self, name, None) or getattr(self._files, name, None)
        number = header.pop("number", None)
        try:
            if action is None:
                raise ClusterError("The agent does not know this command.")
            answer = action(**header, **({"payload": payload} if payload else {})) or {}
        except (DtrainError, OSError, TypeError, ValueError) as error:
            answer = {"error": str(error) or type(error).__name__}
        if number is not None:
            self._say({"event": "answer", "number": number, **answer})

    def do_plan(self, **options: Any) -> Header:
        """Return the device plans of this host's engines."""
        from ...cluster_options import ClusterOptions
        from ..devices import plan_devices

        self._plans = plan_devices(ClusterOptions(**options))
        return {"plans": [vars(plan) for plan in self._plans]}

    def do_reach(self, *, address: str, port: int) -> Header:
        """Return whether a port can be reached from here."""
        try:
            with socket.create_connection((address, port), timeout=3.0):
                return {"reached": True}
        except OSError as error:
            return {"reached": False, "why": error.strerror or str(error)}

    def do_listen(self, *, address: str) -> Header:
        """Listen at a port of `address`, for other hosts to try, until the next such request."""
        self._listening = socket.create_server((address, 0))
        return {"port": self._listening.getsockname()[1]}

    def do_shares(self, *, cwd: str, token: str | None) -> Header:
        """Return whether this host has the notebook's folder, which contains the file `token` now."""
        return {"shares_folder": token is not None and Path(cwd, token).is_file()}

    def do_begin(
        self, *, blobs: str, address: str, marker: str, cwd: str, token: str | None, modules: list[str], hash_seed: str, lingers: bool
    ) -> Header:
        """Create the host's folders, and start the template. `lingers`: a SIGTERM to all processes ends none, and is reported."""
        from ..guarded_processes import GuardedProcesses
        from ..launch_config import process_environment
        from ..launcher import ProcessLauncher

        sweep()
        with contextlib.suppress(OSError):  # like an engine whose folder does not exist
            os.chdir(cwd)
        is_notebooks, folders, self._kept = self._files.begin(Path(blobs))
        if hash_seed:  # sets of strings then have the same order on all hosts
            os.environ["PYTHONHASHSEED"] = hash_seed
        self._lingers = lingers
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if lingers else ())  # inherited by the processes that it starts
        self._processes = processes = GuardedProcesses(self._kept, on_exit=self._tell_exit, on_start=self._tell_start)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        environment = process_environment(folders, marker=marker, connection_file=folders.private / "engine.json")
        interface = interface_of(address)
        environment |= {f"{library}_SOCKET_IFNAME": interface for library in ("GLOO", "NCCL", "TP")}
        environment["MASTER_ADDR"] = address
        environment[HOST_VARIABLE] = socket.gethostname()
        self._launcher = ProcessLauncher(processes, folders, modules, environment=environment)
        self._launcher.start_template(self._plans)
        return {"is_notebooks": is_notebooks, "interface": interface, **self.do_shares(cwd=cwd, token=token)}

    def terminate(self) -> None:
        """Handle a scheduler's SIGTERM: leave at once, or when the notebook has fetched what it needs from this host."""
        if not self._lingers or self._fence_after == IDLE:
            sys.exit(1)
        threading.Thread(target=self._say, args=({"event": "terminated"},), daemon=True).start()  # this thread may be writing
        threading.Timer(LINGER, os._exit, (1,)).start()  # its guard ends the rest

    def do_connect(self, *, connection: Header) -> None:
        """Write the controller's connection file for engines, readable by this user only."""
        assert self._files.own is not None
        file = self._files.own.private / "engine.json"
        descriptor = os.open(file.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as new:
            json.dump(connection, new)
        file.with_suffix(".new").rename(file)

    def do_start_engine(self, *, engine_id: int, plan: Header) -> None:
        """Start an engine."""
        from ..devices import DevicePlan

        self._launcher.start_engine(DevicePlan(**plan), engine_id=engine_id)

    def do_work(self, *, is_on: bool) -> None:
        """Note whether a cell runs on the engines: if so, they end soon when the notebook is silent, as others take their ranks."""
        self._fence_after = FENCE if is_on else IDLE

    def do_signal(self, *, name: str, signal: int) -> None:
        """Send a signal to a process."""
        self._processes.signal(name, signal)

    def do_forget(self, *, name: str) -> None:
        """Forget an ended process."""
        self._processes.forget(name)

    def do_log_tail(self, *, name: str) -> Header:
        """Return the last output of a process."""
        from ..crash_log import last_words

        assert self._files.own is not None
        return {"text": self._files.own.log_tail(name, last_words)}

    def _tell_start(self, name: str, pid: int) -> None:
        self._say({"event": "started", "name": name, "pid": pid})

    def _tell_exit(self, name: str, status: int) -> None:
        if not self._settles or not self._ended.wait(self._settles):
            self._say({"event": "exited", "name": name, "status": status})


def main() -> None:
    """Run the agent on the standard streams, or on the connection that the environment names."""
    settles = SETTLES if agent_streams.VARIABLE in os.environ else 0.0
    try:
        requests, answers, notebook, address = agent_streams.own_streams(*sys.argv[1:2])
    except ClusterError as error:
        sys.exit(str(error))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of libraries must not mix with frames
    for number in (signal.SIGINT, signal.SIGHUP):  # handlers instead of SIG_IGN, which engines would inherit
        signal.signal(number, lambda *_: None)
    for name in filter(re.compile(OF_A_STEP).match, list(os.environ)):
        del os.environ[name]
    agent = HostAgent(requests, answers, notebook=notebook, address=address, settles=settles)
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    agent.serve()
    os._exit(0)  # a sending thread may be blocked by a reader that does not read


if __name__ == "__main__":
    main()
