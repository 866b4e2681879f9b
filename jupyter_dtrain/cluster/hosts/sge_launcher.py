"""Launcher for jobs of Grid Engine (SGE, Son of Grid Engine, Univa's and Altair's)."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from .agent_streams import VARIABLE
from .batch_job import ENDED, JOB_NAME, Job, JobState, Scheduler, SubmittedJob
from .batch_launcher import BatchLauncher
from .job_requests import agent_line, cpus_of, hours_of, nodes_of

SGE = Scheduler("sge", "Grid Engine", "#$")


class SgeJob(SubmittedJob):
    """A job submitted by ``qsub``.

    Parameters
    ----------
    script : str
    limit : str
        Its time limit.
    key : Path
        File from which the script reads its key, as others can read scripts of Grid Engine.
    """

    scheduler, delete = SGE, "qdel"

    def __init__(self, script: str, limit: str, key: Path) -> None:
        self._key = key
        number = SGE.ask(["qsub", "-terse"], script).strip().rpartition("\n")[2]
        super().__init__(number, Path.cwd() / f"{JOB_NAME}-{number}.log")
        self._limit = limit

    def state(self) -> JobState:
        """Query Grid Engine's queue, and its accounting if the job is over."""
        rows = (line.split() for line in SGE.ask(["qstat", "-u", "*"]).splitlines())
        state = next((row[4] for row in rows if len(row) > 4 and row[0] == self.number), "")
        self.is_ending = "d" in state
        if not state:
            return JobState(told="FINISHED", phase="over", end=self._end())
        if not re.search("w|h", state) or "r" in state:
            return JobState(told=f"RUNNING ({state})", phase="runs")
        reason = self._reason()
        if "h" in state:
            reason = f"held; `qrls {self.number}` releases it{': ' if reason else ''}{reason}"
        return JobState(told=state, phase="waits", reason=reason)

    def cancel(self) -> None:
        """Cancel the job, and remove its files."""
        super().cancel()
        self._key.unlink(missing_ok=True)

    def _reason(self) -> str:
        """Return the scheduler's last note, or the error of the job."""
        try:
            told = SGE.ask(["qstat", "-j", self.number])
        except ClusterError:  # the job has just ended
            return ""
        if found := re.search(r"^error reason +\d+: +(.*)", told, re.MULTILINE):
            return f"error: {found[1].strip()}; `qmod -cj {self.number}` lets it try again"
        noted = told.partition("scheduling info:")[2].splitlines()
        return "; ".join(dict.fromkeys(line.strip() for line in noted if line.strip()))

    def _end(self) -> str:
        try:
            told = dict(re.findall(r"^(\w+) +(.*?) *$", SGE.ask(["qacct", "-j", self.number]), re.MULTILINE))
        except ClusterError:  # the accounting is written with a delay
            return ENDED
        failed, status = told.get("failed", "0"), told.get("exit_status", "unknown")
        if "h_rt" in failed:
            return f"is out of time: its limit was {self._limit} (`--time`)"
        if failed.startswith("100") and status.startswith("137"):  # it does not say who
            return "was cancelled: Grid Engine has killed it"
        return f"has ended ({failed})" if failed != "0" else f"has ended (exit status {status})"


class SgeLauncher(BatchLauncher):
    """Start an agent on each node of a job."""

    name, picks_nodes = SGE.launcher, SGE.title

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options whose resources Grid Engine's administrator names."""
        super().check_cluster(options)
        job, nodes = options.job, nodes_of(options.job)
        for option, value in (("--gpus-per-node", job.gpus), ("--mem", job.mem)):
            if value is not None:
                raise UsageError(f"{option}: Grid Engine's administrator names this; write `#$ -l NAME=…` into --launcher-config's file.")
        slots = nodes * (cpus_of(options, nodes) or 1)
        if slots > 1 and not any(re.match(r"#\$\s+-pe\s", line) for line in SGE.config(job.config)[0]):
            raise UsageError(
                f"--launcher sge: {slots} cores are slots of a parallel environment, which Grid Engine's administrator names: "
                f"write `#$ -pe NAME {slots}` into the file of --launcher-config."
            )

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the job's script."""
        job, nodes = options.job, nodes_of(options.job)
        given = [f"-N {JOB_NAME}", "-S /bin/bash"]
        if job.time is not None:
            given.append(f"-l h_rt={hours_of(job.time)}")
        given += [f"-{letter} {value}" for letter, value in (("q", job.partition), ("A", job.account)) if value is not None]
        given += [f"-o {shlex.quote(f'{Path.cwd()}/{JOB_NAME}-$JOB_ID.log')}", "-j y", "-r n"]
        lost = "The file with this job's key is not on this node. It is in the home folder of the notebook's host, which nodes must share."
        known = f'[ -n "${VARIABLE}" ] || {{ echo {shlex.quote(lost)} >&2; exit 1; }}'
        if nodes == 1:
            return SGE.script(options, given, invited, [known, f"exec {agent_line(options)}"])
        start = [
            known,
            "at=0",
            "while read -r node _; do",
            f'  qrsh -inherit -nostdin -V "$node" {agent_line(options, "$at")} < /dev/null &',
            "  at=$((at + 1))",
            'done < "$PE_HOSTFILE"',
            f'[ $at = {nodes} ] || echo "The parallel environment $PE has given $at nodes instead of {nodes}." >&2',
            "wait",
        ]
        return SGE.script(options, given, invited, start)

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Submit a job."""
        time = options.job.time
        with tempfile.NamedTemporaryFile("w", dir=Path.home(), prefix=f".{JOB_NAME}-", delete=False) as key:  # readable by the user only
            key.write(invited)
        name = shlex.quote(key.name)
        try:
            script = self.script_of(options, f'"$(cat {name}; rm -f {name})"')
            return SgeJob(script, "its queue's" if time is None else hours_of(time), Path(key.name))
        except BaseException:
            Path(key.name).unlink()
            raise
