"""A job of Slurm's in which agents run, one on each node: its script, its state, and what Slurm says of its end."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ClusterError, UsageError
from ...options import ClusterOptions
from . import host_agent
from .agent_launcher import agent_command, agent_python
from .dialed_link import VARIABLE

ANSWERED = 20.0
"""Seconds for Slurm's commands: its controller may be busy."""
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--mpi=none", "--input=none")
"""One agent on each node; that of one node may end without the others."""
WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNS = ("RUNNING", "COMPLETING", "SUSPENDED")
_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "is out of time: its limit was {limit} (`--time`)",
    "DEADLINE": "is out of time: its deadline has come",
    "PREEMPTED": "was preempted by a job of higher priority",
    "NODE_FAIL": "has ended, as one of its nodes has failed",
    "OUT_OF_MEMORY": "has used more memory than it may: give it more by `#SBATCH --mem=…` in the file of `--launcher-config`",
}


def script_of(options: ClusterOptions, invited: str = "…") -> str:
    """Return the script of a job for `options`, whose agents connect as `invited` says."""
    job, python = options.job, agent_python(options)
    extra, prologue = _config(job.config)
    given = {
        "job-name": "jupyter-dtrain",
        "nodes": str(nodes_of(options)),
        "ntasks-per-node": "1",
        "cpus-per-task": None if options.num_engines is None else str(options.num_engines // nodes_of(options)),
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "output": str(Path.cwd() / "jupyter-dtrain-%j.log"),
        "open-mode": "truncate",
    }
    lines = [f"#SBATCH --{option}={value}" for option, value in given.items() if value is not None]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "#SBATCH --no-requeue",
            "#SBATCH --no-kill",
            *extra,
            *prologue,
            f"export {VARIABLE}={invited}",
            f"exec {shlex.join(SRUN)} ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} {shlex.join(agent_command(python))}",
            "",
        ]
    )


def _config(path: str | None) -> tuple[list[str], list[str]]:
    """Return the ``#SBATCH`` lines of a file, and the commands that come before the agents."""
    if path is None:
        return [], []
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except OSError as error:
        raise UsageError(f"--launcher-config {path}: {error.strerror}.") from None
    lines = [line for line in lines if line.strip() and not line.startswith("#!")]
    options = [line for line in lines if line.startswith("#SBATCH")]
    return options, [line for line in lines if line not in options]


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job: its `state`, the `reason` why it waits, and when it will probably begin."""

    state: str
    reason: str = ""
    begins: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in WAITS

    @property
    def is_over(self) -> bool:
        """Whether it has none any more."""
        return not self.waits and self.state not in RUNS


class SlurmJob(ABC):
    """What the agents run in.

    Attributes
    ----------
    number : str
        Slurm's.
    """

    number: str

    @abstractmethod
    def state(self) -> JobState:
        """Return how it is."""

    @abstractmethod
    def cancel(self) -> None:
        """End it, if it runs or waits still."""

    @abstractmethod
    def log(self) -> list[str]:
        """Return what was written by what started the agents, as far as it can be read here."""

    def why_ended(self, node: str) -> str:
        """Return why the agent of `node` has ended, as far as Slurm knows; empty where it does not."""
        job = _facts("job", self.number)
        state = job.get("JobState", "").partition(" ")[0]
        if state in _ENDS:
            return f"its job {self.number} {_ENDS[state].format(limit=job.get('TimeLimit', 'unknown'))}"
        if state in ("FAILED", "COMPLETED", "BOOT_FAIL"):
            where = f": what it has written is in {job['StdOut']} on {job.get('BatchHost', 'its first node')}" if "StdOut" in job else ""
            return f"its job {self.number} has ended ({state}, exit code {job.get('ExitCode', 'unknown')}){where}"
        at = _facts("node", node) if node else {}
        if re.search("DOWN|FAIL|NOT_RESPONDING", at.get("State", "")):
            return f"Slurm has marked it {at['State']} ({at.get('Reason', 'without a reason')})"
        return ""


class BatchJob(SlurmJob):
    """A job of our own, submitted by ``sbatch``.

    Parameters
    ----------
    script : str
        Given through a pipe: there is a key in it.
    """

    def __init__(self, script: str) -> None:
        told = _ask(["sbatch", "--parsable"], script)
        self.number = told.strip().rpartition("\n")[2].partition(";")[0]
        self._log = Path.cwd() / f"jupyter-dtrain-{self.number}.log"

    def state(self) -> JobState:
        """Ask Slurm's queue, and where it has forgotten the job, what it knows of it."""
        told = _ask(["squeue", "--noheader", f"--job={self.number}", "--states=all", "--format=%T|%r|%S"]).strip()
        return JobState(*told.split("|")[:3]) if told else JobState("COMPLETED")

    def cancel(self) -> None:
        """Cancel it, and remove what it has written."""
        try:
            _ask(["scancel", self.number])
        except ClusterError:
            return  # Slurm cannot be asked: the agents end by themselves, and the job with them
        self._log.unlink(missing_ok=True)

    def log(self) -> list[str]:
        """Return the last lines of its output, where its folder is here as well."""
        try:
            return self._log.read_text(errors="replace").splitlines()[-20:]
        except OSError:
            return []


class AllocatedStep(SlurmJob):
    """A step in the allocation that this process runs in (``salloc``, batchspawner).

    Parameters
    ----------
    options : ClusterOptions
    invited : str
        For the agents.
    """

    def __init__(self, options: ClusterOptions, invited: str) -> None:
        self.number = os.environ["SLURM_JOB_ID"]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # until the step has ended
        command = [*SRUN, f"--jobid={self.number}", f"--nodes={nodes_of(options)}", "--overlap", *agent_command(agent_python(options))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env={**{name: value for name, value in os.environ.items() if not re.match(host_agent.OF_A_STEP, name)}, VARIABLE: invited},
            start_new_session=True,
        )

    def state(self) -> JobState:
        """Return whether ``srun`` runs."""
        return JobState("RUNNING" if self._process.poll() is None else "COMPLETED")

    def cancel(self) -> None:
        """End the step; the allocation is not ours."""
        self._process.terminate()
        try:
            self._process.wait(ANSWERED)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> list[str]:
        """Return what ``srun`` has said."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace").splitlines()[-20:]


def allocated_nodes() -> int:
    """Return how many nodes the allocation has that this process runs in; 0: in none."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if "SLURM_JOB_ID" in os.environ else 0


def nodes_of(options: ClusterOptions) -> int:
    """Return on how many nodes agents are to be: by default on all of the allocation, or else on one."""
    return options.job.nodes or allocated_nodes() or 1


def _facts(kind: str, name: str) -> dict[str, str]:
    """Return what Slurm knows of a job or a node; nothing where it cannot be asked."""
    try:
        told = _ask(["scontrol", "--oneliner", "show", kind, name])
    except ClusterError:
        return {}
    return dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|$)", told.strip()))


def _ask(command: Sequence[str], given: str = "") -> str:
    try:
        done = subprocess.run(command, input=given, text=True, capture_output=True, timeout=ANSWERED, check=False)
    except FileNotFoundError:
        raise ClusterError(f"There is no {command[0]} here: --launcher slurm needs Slurm's commands on the notebook's host.") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"Slurm's {command[0]} has not answered within {ANSWERED:g} s.") from None
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2].removeprefix(f"{command[0]}: ").removeprefix("error: ")
        raise ClusterError(f"Slurm's {command[0]} says: {said or f'exit code {done.returncode}'}.")
    return done.stdout
