"""Real Slurm on hosts of the lab: its controller beside the notebook, and a node on each of some others.

Jobs in the partition ``urgent`` preempt those in ``main``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.hosts.virtual_hosts import VirtualHost, VirtualHosts

LIMIT = 20.0  # seconds until all nodes are idle
_CONF = """
ClusterName=lab
SlurmctldHost=h0
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={state}/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=20
OverTimeLimit=0
ReturnToService=0
SwitchType=switch/none
MpiDefault=none
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def why_no_slurm() -> str:
    """Return why Slurm cannot run here; empty where it can."""
    missing = [tool for tool in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(tool, path="/usr/bin:/usr/sbin") is None]
    return f"there is no {missing[0]} (Debian's slurmctld, slurmd, slurm-client, munge)" if missing else ""


class VirtualSlurm:
    """Slurm, with nodes `nodes` of `cpus` cores, as far as it knows."""

    def __init__(self, lab: VirtualHosts, nodes: Sequence[VirtualHost], *, cpus: int = 2) -> None:
        self._lab, self._nodes = lab, nodes
        self.state = lab.folder / "slurm"
        self._servers: list[subprocess.Popen[bytes]] = []
        (self.state / "slurmctld").mkdir(parents=True)
        lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs={cpus} RealMemory=4000 State=UNKNOWN" for node in nodes]
        (self.state / "slurm.conf").write_text(_CONF.format(state=self.state, nodes="\n".join(lines)))
        key = self.state / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def __enter__(self) -> VirtualSlurm:
        try:
            for host in (self._lab[0], *self._nodes):
                files = [f"--{kind}-file={host.state}/munged.{kind}" for kind in ("log", "seed", "pid")]
                host.run(["mkdir", "-p", "/run/munge"])
                place = [f"--key-file={self.state}/munge.key", "--socket=/run/munge/munge.socket.2", *files]
                self._start(host, ["munged", "--foreground", "--force", *place])
            for host in (self._lab[0], *self._nodes):
                self._wait_for(lambda host=host: self._try(host, ["munge", "-n"]))
            self._start(self._lab[0], ["slurmctld", "-D", "-c"])
            for node in self._nodes:
                self._start(node, ["slurmd", "-D", "-N", node.name])
            states = ["sinfo", "-hN", "-p", "main", "-o", "%T"]
            self._wait_for(lambda: (self._try(self._lab[0], states) or "").split() == ["idle"] * len(self._nodes))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._servers):
            with suppress(ProcessLookupError):
                server.terminate()
        for host in (self._lab[0], *self._nodes):  # what `nsenter` has started gets no signal with it
            host.run(["sh", "-c", "pkill -9 -x 'slurmctld|slurmd|slurmstepd|munged' || true"])
        for server in self._servers:
            server.wait()

    def run(self, *argv: object) -> str:
        """Return what a command of Slurm's says on the notebook's host."""
        said = self._try(self._lab[0], argv)
        assert said is not None, argv
        return said

    def jobs(self) -> list[str]:
        """Return the states of jobs that wait or run, by their numbers."""
        return self.run("squeue", "-h", "-o", "%i %T").splitlines()

    def _start(self, host: VirtualHost, argv: Sequence[str]) -> None:
        command = host.argv([f"/usr/sbin/{argv[0]}", *argv[1:]], env=self.env)
        with (host.state / f"{argv[0]}.out").open("wb") as log:
            self._servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.state / "slurm.conf")}

    def _try(self, host: VirtualHost, argv: Sequence[object]) -> str | None:
        done: Any = subprocess.run(host.argv(argv, env=self.env), capture_output=True, text=True, check=False)
        return None if done.returncode else done.stdout

    def _wait_for(self, condition: Any) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                logs = [*self.state.glob("*.log"), *self._lab.folder.glob("h*/*.out")]
                raise TimeoutError("\n".join(f"{log}: {log.read_text(errors='replace')[-800:]}" for log in logs))
            time.sleep(0.05)
