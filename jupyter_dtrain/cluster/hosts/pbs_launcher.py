"""Launcher for jobs of PBS: OpenPBS and PBS Professional. Torque's commands have other options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ...cluster_options import ClusterOptions
from ...errors import ClusterError
from .agent_streams import VARIABLE
from .batch_job import ENDED, JOB_NAME, Job, JobState, Phase, Scheduler, SubmittedJob
from .batch_launcher import BatchLauncher
from .job_requests import agent_line, cpus_of, hours_of, nodes_of

PBS = Scheduler("pbs", "PBS", "#PBS")
_PHASES: dict[str, Phase] = {**dict.fromkeys("QHWTM", "waits"), **dict.fromkeys("RESUB", "runs")}
_STATES = {"Q": "QUEUED", "H": "HELD", "W": "WAITING", "T": "MOVING", "M": "MOVED", "R": "RUNNING", "E": "ENDING", "S": "SUSPENDED"}
_DELETED = "91"
"""Substate of a deleted job."""
_ENDS = {
    "-29": "is out of time: its limit was {walltime} (`--time`)",
    "-28": "is out of time: it exceeded its CPU time limit",
    "-27": "has exceeded its memory limit: request more with `--mem`",
    "-26": "has exceeded its memory limit: request more with `--mem`",
    "271": "was cancelled",
}
"""Texts by the exit status of jobs that PBS has ended; 271 means SIGTERM."""


class PbsJob(SubmittedJob):
    """A job submitted by ``qsub``.

    Parameters
    ----------
    script : str
        Passed through a pipe, as it contains a key.
    """

    scheduler, delete = PBS, "qdel"

    def __init__(self, script: str) -> None:
        number = PBS.ask(["qsub"], script).strip().rpartition("\n")[2]
        super().__init__(number, Path.cwd() / f"{JOB_NAME}.o{number.partition('.')[0]}")

    def state(self) -> JobState:
        """Query PBS, which remembers ended jobs if it keeps a history."""
        try:
            told = _facts(PBS.ask(["qstat", "-x", "-f", self.number]))
        except ClusterError as error:
            if re.search("Unknown Job|has finished", str(error)):
                return JobState(told="FINISHED", phase="over", end=ENDED)
            raise
        letter = told.get("job_state", "F")
        phase = _PHASES.get(letter, "over")
        self.is_ending = letter == "E"
        reason, end = told.get("comment", ""), ""
        if letter == "H":
            reason = f"held{_by(told.get('Hold_Types', ''))}; `qrls {self.number}` releases it{': ' if reason else ''}{reason}"
        if phase == "over":
            end = _end(told)
        return JobState(
            told=_STATES.get(letter, "FINISHED"), phase=phase, reason=reason, begins=told.get("estimated.start_time", ""), end=end
        )


def _by(holds: str) -> str:
    whose = [{"u": "its owner", "o": "an operator", "s": "the system"}.get(hold, "") for hold in holds]
    return f" by {' and '.join(filter(None, whose))}" if any(whose) else ""


def _end(told: dict[str, str]) -> str:
    status = told.get("Exit_status", "unknown")
    if told.get("substate") == _DELETED:
        return _ENDS["271"]
    limit = told.get("Resource_List.walltime", "unknown")
    return _ENDS.get(status, f"has ended (exit status {status})").format(walltime=limit)


def _facts(told: str) -> dict[str, str]:
    """Return the fields of ``qstat -f``, whose long lines continue after a tab."""
    lines = told.replace("\n\t", "").splitlines()
    return {name.strip(): value for name, equals, value in (line.partition(" = ") for line in lines) if equals}


class PbsLauncher(BatchLauncher):
    """Start an agent on each node of a job."""

    name, picks_nodes = PBS.launcher, PBS.title

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the job's script. Other nodes read the key from a file in the home folder, as PBS passes them no variables."""
        job, nodes = options.job, nodes_of(options.job)
        each = {"ncpus": cpus_of(options, nodes), "ngpus": job.gpus, "mem": job.mem and f"{job.mem.lower()}b"}
        chunk = "".join(f":{name}={value}" for name, value in each.items() if value is not None)
        given = [f"-N {JOB_NAME}", "-S /bin/bash", f"-l select={nodes}{chunk}"]
        if nodes > 1:
            given.append("-l place=scatter")
        if job.time is not None:
            given.append(f"-l walltime={hours_of(job.time)}")
        given += [f"-{letter} {value}" for letter, value in (("q", job.partition), ("A", job.account)) if value is not None]
        given += ["-j oe", f"-o {shlex.quote(f'{Path.cwd()}/')}", "-r n"]
        if nodes == 1:
            return PBS.script(options, given, invited, [f"exec {agent_line(options)}"])
        _, prologue = PBS.config(job.config)
        start = [
            "umask 077",
            f'own="$HOME/.{JOB_NAME}-$PBS_JOBID"',
            "trap 'rm -f \"$own\"' EXIT",
            "cat > \"$own\" <<'END_OF_NODE'",
            *prologue,
            f"export {VARIABLE}={invited}",
            f"exec {agent_line(options, '$1')}",
            "END_OF_NODE",
            f'for at in {" ".join(map(str, range(nodes)))}; do pbsdsh -n $at -- /bin/bash -l "$own" $at & done',
            "wait",
        ]
        return PBS.script(options, given, invited, start)

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Submit a job."""
        return PbsJob(self.script_of(options, invited))
