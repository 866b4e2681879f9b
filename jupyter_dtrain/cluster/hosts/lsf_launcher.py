"""Launcher for jobs of LSF."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ...cluster_options import ClusterOptions
from ...errors import ClusterError
from .batch_job import ENDED, JOB_NAME, Job, JobState, Phase, Scheduler, SubmittedJob
from .batch_launcher import BatchLauncher
from .job_requests import agent_line, cpus_of, nodes_of, seconds_of

LSF = Scheduler("lsf", "LSF", "#BSUB")
FIELDS = "stat pend_reason estimated_start_time exit_reason exit_code delimiter='|'"
_PHASES: dict[str, Phase] = {
    **dict.fromkeys(("PEND", "PSUSP", "WAIT", "PROV"), "waits"),
    **dict.fromkeys(("RUN", "USUSP", "SSUSP", "UNKWN"), "runs"),
}
_ENDS = {
    "TERM_RUNLIMIT": "is out of time: its limit was {limit} (`--time`)",
    "TERM_DEADLINE": "is out of time: it reached its deadline",
    "TERM_WINDOW": "is out of time: the window of its queue has closed",
    "TERM_CPULIMIT": "is out of time: it exceeded its CPU time limit",
    "TERM_MEMLIMIT": "has exceeded its memory limit: request more with `--mem`",
    "TERM_PREEMPT": "was preempted by a job of higher priority",
    "TERM_OWNER": "was cancelled",
    "TERM_FORCE_OWNER": "was cancelled",
    "TERM_ADMIN": "was cancelled by an administrator",
    "TERM_FORCE_ADMIN": "was cancelled by an administrator",
}


class LsfJob(SubmittedJob):
    """A job submitted by ``bsub``.

    Parameters
    ----------
    script : str
        Passed through a pipe, as it contains a key.
    limit : str
        Its time limit.
    """

    scheduler, delete = LSF, "bkill"

    def __init__(self, script: str, limit: str) -> None:
        told = LSF.ask(["bsub"], script)
        found = re.search(r"Job <(\d+)>", told)
        if found is None:
            raise ClusterError(f"LSF's bsub says: {told.strip() or 'nothing'}.")
        super().__init__(found[1], Path.cwd() / f"{JOB_NAME}-{found[1]}.log")
        self._limit = limit

    def state(self) -> JobState:
        """Query LSF, which remembers ended jobs for a while."""
        try:
            told = LSF.ask(["bjobs", "-a", "-noheader", "-o", FIELDS, self.number]).strip()
        except ClusterError as error:
            if "is not found" not in str(error):
                raise
            told = ""
        if not told:
            return JobState(told="DONE", phase="over", end=ENDED)
        state, reason, begins, ended, code = ("" if part == "-" else part for part in told.splitlines()[-1].split("|"))
        phase = _PHASES.get(state, "over")
        if state == "PSUSP":
            reason = f"held; `bresume {self.number}` releases it{': ' if reason else ''}{reason}"
        why = _ENDS.get(ended.partition(":")[0], f"has ended ({state}, exit code {code or '0'})").format(limit=self._limit)
        return JobState(told=state, phase=phase, reason=reason, begins=begins, end=why if phase == "over" else "")


class LsfLauncher(BatchLauncher):
    """Start an agent on each node of a job."""

    name, picks_nodes = LSF.launcher, LSF.title

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the job's script."""
        job, nodes = options.job, nodes_of(options.job)
        cpus = cpus_of(options, nodes) or 1
        given = [f"-J {JOB_NAME}", f"-n {nodes * cpus}", f'-R "span[ptile={cpus}]"']
        if job.mem is not None:
            given.append(f'-R "rusage[mem={job.mem}B/host]"')
        if job.gpus is not None:
            given.append(f'-gpu "num={job.gpus}/host"')
        if job.time is not None:
            given.append(f"-W {_limit(job.time)}")
        given += [f"-{letter} {value}" for letter, value in (("q", job.partition), ("P", job.account)) if value is not None]
        given += [f"-o {shlex.quote(str(Path.cwd() / f'{JOB_NAME}-%J.log'))}", "-rn"]
        if nodes == 1:
            return LSF.script(options, given, invited, [f"exec {agent_line(options)}"])
        start = [
            "at=0",
            'for node in $(uniq "$LSB_DJOB_HOSTFILE"); do',
            f'  blaunch "$node" {agent_line(options, "$at")} < /dev/null &',
            "  at=$((at + 1))",
            "done",
            "wait",
        ]
        return LSF.script(options, given, invited, start)

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Submit a job."""
        time = options.job.time
        return LsfJob(self.script_of(options, invited), "its queue's" if time is None else _limit(time))


def _limit(time: str) -> str:
    """Return a time limit in LSF's format, rounded up to minutes."""
    minutes = -(-seconds_of(time) // 60)
    return f"{minutes // 60}:{minutes % 60:02}"
