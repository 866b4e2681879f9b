"""Launcher for jobs of Slurm, or for ``srun`` in the allocation that the notebook itself runs in (``salloc``, batchspawner)."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from .agent_launcher import agent_command, agent_python
from .batch_job import JOB_NAME, Job, JobState, Phase, ProcessJob, Scheduler, SubmittedJob
from .batch_launcher import BatchLauncher
from .job_requests import agent_line, cpus_of

SLURM = Scheduler("slurm", "Slurm", "#SBATCH")
SRUN = ("srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--mpi=none", "--input=none")
"""Starts one agent per node, each of which may end without the others."""
WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNS = ("RUNNING", "COMPLETING", "SUSPENDED")
_ENDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "is out of time: its limit was {limit} (`--time`)",
    "DEADLINE": "is out of time: it reached its deadline",
    "PREEMPTED": "was preempted by a job of higher priority",
    "NODE_FAIL": "has ended because one of its nodes failed",
    "OUT_OF_MEMORY": "has exceeded its memory limit: request more with `--mem`",
}


_NO_FILE = "0:53"
"""Exit code of a job whose files cannot be opened, as its folder is not on the node."""


def script_of(options: ClusterOptions, invited: str = "…") -> str:
    """Return the job script for `options`, whose agents connect by `invited`."""
    job = options.job
    cpus, gpus = cpus_of(options, nodes_of(options)), job.gpus
    given = {
        "job-name": JOB_NAME,
        "nodes": str(nodes_of(options)),
        "ntasks-per-node": "1",
        "cpus-per-task": None if cpus is None else str(cpus),
        "gpus-per-node": None if gpus is None else str(gpus),
        "mem": job.mem,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "output": str(Path.cwd() / f"{JOB_NAME}-%j.log"),
        "open-mode": "truncate",
    }
    lines = [f"--{option}={value}" for option, value in given.items() if value is not None]
    start = f"exec {shlex.join(SRUN)} ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} {agent_line(options)}"
    return SLURM.script(options, [*lines, "--no-requeue", "--no-kill"], invited, [start])


def _why(job: Job, node: str) -> str:
    """Return why an agent has ended, from Slurm's records of its job and node."""
    known = _facts("job", job.number)
    state = known.get("JobState", "").partition(" ")[0]
    if state in _ENDS:
        return f"its job {job.number} {_ENDS[state].format(limit=known.get('TimeLimit', 'unknown'))}"
    if isinstance(job, SlurmJob) and (state in ("REQUEUED", "PENDING") or known.get("Restarts", "0") != job.restarts):
        job.restarts = known.get("Restarts", "0")
        return f"its job {job.number} was requeued"
    if state == "FAILED" and known.get("ExitCode") == _NO_FILE and "StdOut" in known:
        where = f"{Path(known['StdOut']).parent} on {known.get('BatchHost', 'its first node')}"
        return f"its job {job.number} cannot write its output into {where}: change (`%cd`) to a folder that nodes have too"
    if state in ("FAILED", "COMPLETED", "BOOT_FAIL"):
        where = f": its output is in {known['StdOut']} on {known.get('BatchHost', 'its first node')}" if "StdOut" in known else ""
        return f"its job {job.number} has ended ({state}, exit code {known.get('ExitCode', 'unknown')}){where}"
    at = _facts("node", node) if node else {}
    if re.search("DOWN|FAIL|NOT_RESPONDING", at.get("State", "")):
        return f"Slurm has marked it {at['State']} ({at.get('Reason', 'without a reason')})"
    return ""


class SlurmJob(SubmittedJob):
    """A job of our own, submitted by ``sbatch``.

    Parameters
    ----------
    script : str
        Passed through a pipe, as it contains a key.
    """

    scheduler, delete, settles = SLURM, "scancel", 1.5
    restarts = "0"  # as last reported

    def __init__(self, script: str) -> None:
        number = SLURM.ask(["sbatch", "--parsable"], script).strip().rpartition("\n")[2].partition(";")[0]
        super().__init__(number, Path.cwd() / f"{JOB_NAME}-{number}.log")

    def may_run_again(self) -> bool:
        """Return whether it may be requeued (``#SBATCH --requeue`` in a user's file)."""
        return _facts("job", self.number).get("Requeue") == "1"

    def state(self) -> JobState:
        """Query Slurm's queue; a job that it has forgotten is over."""
        told = SLURM.ask(["squeue", "--noheader", f"--job={self.number}", "--states=all", "--format=%T|%r|%S"]).strip()
        state, reason, begins = (told or "COMPLETED||").split("|")[:3]
        phase: Phase = "waits" if state in WAITS else "runs" if state in RUNS else "over"
        return JobState(told=state, phase=phase, reason=reason, begins="" if begins == "N/A" else begins)

    def why_ended(self, node: str) -> str:
        """Return Slurm's reason from the job, or else from the node."""
        return _why(self, node)


class AllocatedStep(ProcessJob):
    """A step in the allocation that this process runs in (``salloc``, batchspawner).

    Parameters
    ----------
    options : ClusterOptions
    invited : str
        The agents' invitation.
    """

    def __init__(self, options: ClusterOptions, invited: str) -> None:
        number = os.environ["SLURM_JOB_ID"]
        where = [f"--jobid={number}", f"--nodes={nodes_of(options)}", "--overlap"]
        super().__init__(number, [*SRUN, *where, *agent_command(agent_python(options))], invited)

    def why_ended(self, node: str) -> str:
        """Return Slurm's reason from the job, or else from the node."""
        return _why(self, node)


def allocated_nodes() -> int:
    """Return the number of nodes of this process's allocation; 0 if there is none."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if "SLURM_JOB_ID" in os.environ else 0


def nodes_of(options: ClusterOptions) -> int:
    """Return the number of nodes: by default all of the allocation, or one."""
    return options.job.nodes or allocated_nodes() or 1


class SlurmLauncher(BatchLauncher):
    """Start an agent on each node of a job, or of the notebook's allocation."""

    name, picks_nodes = SLURM.launcher, SLURM.title

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for more nodes than the allocation has."""
        super().check_cluster(options)
        nodes = nodes_of(options)
        if (has := allocated_nodes()) and nodes > has:
            raise UsageError(f"--nodes {nodes}: the allocation that this notebook runs in has {has}.")

    def nodes(self, options: ClusterOptions) -> int:
        """Return the number of nodes: by default all of the allocation."""
        return nodes_of(options)

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the job's script."""
        return script_of(options, invited)

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Submit a job, or start a step in the allocation."""
        return AllocatedStep(options, invited) if allocated_nodes() else SlurmJob(script_of(options, invited))


def _facts(kind: str, name: str) -> dict[str, str]:
    """Return Slurm's record of a job or node; empty if Slurm cannot be asked."""
    try:
        told = SLURM.ask(["scontrol", "--oneliner", "show", kind, name])
    except ClusterError:
        return {}
    return dict(re.findall(r"(\w+)=(.*?)(?=\s+\w+=|$)", told.strip()))
