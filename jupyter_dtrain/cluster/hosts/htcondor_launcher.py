"""Launcher for HTCondor: a job with one process per node, each of which runs an agent."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from .batch_job import ENDED, JOB_NAME, Job, JobState, Scheduler, SubmittedJob
from .batch_launcher import BatchLauncher
from .job_requests import agent_line, cpus_of, hours_of, nodes_of, seconds_of

HTCONDOR = Scheduler("htcondor", "HTCondor", "#CONDOR")
ATTRIBUTES = "ProcId,JobStatus,NumJobStarts,LastRejMatchReason,HoldReason,HoldReasonCode,RemoveReason,ExitCode"
IDLE, REMOVED, HELD = 1, 3, 5
_OVERTIME = (46, 47)
"""Hold codes for exceeded time limits."""


class CondorJob(SubmittedJob):
    """A job submitted by ``condor_submit``.

    Parameters
    ----------
    description : str
        The submit description.
    script : str
        Script of each process. It contains a key, so it is written to a file that only the user can read: HTCondor shows descriptions.
    limit : str
        Its time limit.
    """

    scheduler, delete = HTCONDOR, "condor_rm"

    def __init__(self, description: str, script: str, limit: str) -> None:
        self._folder, self._limit = Path(tempfile.mkdtemp(prefix=f"{JOB_NAME}-")), limit
        file = self._folder / "agent.sh"
        file.touch(0o700)
        file.write_text(script)
        try:
            told = HTCONDOR.ask(["condor_submit", "-terse", "-"], f"executable = {file}\n{description}")
        except ClusterError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        number = told.strip().rpartition("\n")[2].partition(".")[0]
        super().__init__(number, Path.cwd() / f"{JOB_NAME}-{number}.*.log")

    def state(self) -> JobState:
        """Query HTCondor's queue, and its history if the job has left the queue."""
        there = self._ask("condor_q")
        if held := [each for each in there if each.get("JobStatus") == HELD]:
            why = held[0].get("HoldReason", "")
            end = f"is out of time: its limit was {self._limit} (`--time`)" if _is_overtime(held[0]) else f"is held: {why}"
            return JobState(told="HELD", phase="waits", reason=f"{why}; `condor_release {self.number}` releases it", end=end)
        over = self._ask("condor_history", "-limit", "1") if not there else []
        if not there:
            return JobState(told="COMPLETED", phase="over", end=_end(over[0]) if over else ENDED)
        if idle := [each for each in there if each.get("JobStatus") == IDLE]:
            return JobState(told="IDLE", phase="waits", reason=idle[0].get("LastRejMatchReason", ""))
        return JobState(told="RUNNING", phase="runs")

    def cancel(self) -> None:
        """Remove the job and its files."""
        super().cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, command: str, *more: str) -> list[dict[str, Any]]:
        told = HTCONDOR.ask([command, self.number, "-json", "-attributes", ATTRIBUTES, *more]).strip()
        found: list[dict[str, Any]] = json.loads(told) if told else []
        return found


def _is_overtime(told: dict[str, Any]) -> bool:
    return told.get("HoldReasonCode") in _OVERTIME


def _end(told: dict[str, Any]) -> str:
    why = str(told.get("RemoveReason", ""))
    if "PeriodicRemove" in why:
        return "was evicted from its machine"
    if told.get("JobStatus") == REMOVED:
        return f"was cancelled ({why})" if why else "was cancelled"
    return f"has ended (exit code {told.get('ExitCode', 'unknown')})"


class HTCondorLauncher(BatchLauncher):
    """Start an agent in each process of a job."""

    name, picks_nodes = HTCONDOR.launcher, HTCONDOR.title

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options that HTCondor does not have."""
        super().check_cluster(options)
        if options.job.partition is not None:
            raise UsageError("--partition: HTCondor has none. Write `#CONDOR requirements = …` into the file of --launcher-config.")

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the job's description, and the script of each process."""
        return f"{self._description(options)}\n\n{self._program(options, invited)}"

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Submit a job."""
        time = options.job.time
        limit = "the pool's" if time is None else hours_of(time)
        return CondorJob(self._description(options), self._program(options, invited), limit)

    @staticmethod
    def _description(options: ClusterOptions) -> str:
        job, nodes = options.job, nodes_of(options.job)
        log = Path.cwd() / f"{JOB_NAME}-$(Cluster).$(Process).log"
        given = {
            "batch_name": JOB_NAME,
            "universe": "vanilla",
            "arguments": "$(Process)",
            "transfer_executable": "True",
            "should_transfer_files": "YES",
            "output": log,
            "error": log,
            "request_cpus": cpus_of(options, nodes),
            "request_gpus": job.gpus,
            "request_memory": job.mem and f"{job.mem}B",
            "accounting_group": job.account,
            "allowed_job_duration": None if job.time is None else seconds_of(job.time),
            "periodic_remove": f"JobStatus == {IDLE} && NumJobStarts > 0",  # evicted: agents that come later would find nobody
        }
        extra = [line.removeprefix(HTCONDOR.directive).strip() for line in HTCONDOR.config(job.config)[0]]
        return "\n".join([*(f"{name} = {value}" for name, value in given.items() if value is not None), *extra, f"queue {nodes}"])

    @staticmethod
    def _program(options: ClusterOptions, invited: str) -> str:
        script = HTCONDOR.script(options, [], invited, [f"exec {agent_line(options, '$1')}"])
        return "\n".join(line for line in script.split("\n") if not line.startswith(HTCONDOR.directive))
