"""Jobs in which agents run: states, ends, and what scripts for schedulers share."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ...cluster_options import ClusterOptions
from ...errors import ClusterError, UsageError
from . import host_agent
from .agent_streams import VARIABLE

Phase = Literal["waits", "runs", "over"]
ANSWERED = 20.0
"""Seconds for a scheduler's command to answer."""
JOB_NAME = "jupyter-dtrain"
ENDED = "has ended, and the scheduler no longer lists it: it was deleted, or ran out of time"
"""Of a job that a scheduler has forgotten."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The state of a job.

    Attributes
    ----------
    told : str
        The scheduler's name of the state.
    phase : {"waits", "runs", "over"}
        Whether it waits for nodes, has them, or has ended.
    reason, begins : str
        Why it waits, and its estimated start.
    end : str
        How it has ended or why it is held, as a continuation of "its job 17"; empty if it has not ended or this is unknown.
    """

    told: str
    phase: Phase
    reason: str = ""
    begins: str = ""
    end: str = ""


class Job(ABC):
    """A job that runs the agents.

    Attributes
    ----------
    number : str
        Its id in the scheduler.
    settles : float
        Seconds until the cause of an agent's end is known: most schedulers report it when all processes are gone.
    is_ending : bool
        Whether the last `state` was that it is ending; the cause is known when it is over.
    """

    number: str
    settles: ClassVar[float] = 4.0
    is_ending = False

    @abstractmethod
    def state(self) -> JobState:
        """Return the job's state."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the job, if it still runs or waits."""

    @abstractmethod
    def log(self) -> list[str]:
        """Return the output of the processes that started the agents, as far as it can be read here."""

    def may_run_again(self) -> bool:
        """Return whether the scheduler restarts the job when it takes its nodes away."""
        return False

    def why_ended(self, node: str) -> str:  # noqa: ARG002  # most schedulers know only of jobs
        """Return why the agent of `node` has ended, as far as the scheduler knows; empty if it does not."""
        try:
            end = self.state().end
        except ClusterError:  # the scheduler cannot be asked
            return ""
        return f"its job {self.number} {end}" if end else ""


@dataclass(frozen=True)
class Scheduler:
    """A batch scheduler.

    Attributes
    ----------
    launcher, title : str
        Its name after ``--launcher``, and in messages.
    directive : str
        Prefix of its lines in a script.
    """

    launcher: str
    title: str
    directive: str

    def ask(self, command: Sequence[str], given: str = "") -> str:
        """Return the output of one of its commands; raise a `ClusterError` if it fails or is not there."""
        try:
            done = subprocess.run(command, input=given, text=True, capture_output=True, timeout=ANSWERED, check=False)
        except FileNotFoundError:
            needs = f"--launcher {self.launcher} needs {self.title}'s commands on the notebook's host"
            raise ClusterError(f"There is no {command[0]} here: {needs}.") from None
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{self.title}'s {command[0]} has not answered within {ANSWERED:g} s.") from None
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2].removeprefix(f"{command[0]}: ").removeprefix("error: ").rstrip(".")
            raise ClusterError(f"{self.title}'s {command[0]} says: {said or f'exit code {done.returncode}'}.")
        return done.stdout

    def config(self, path: str | None) -> tuple[list[str], list[str]]:
        """Return the scheduler's lines in a user's file, and the commands to run before the agents."""
        if path is None:
            return [], []
        try:
            lines = Path(path).expanduser().read_text().splitlines()
        except OSError as error:
            raise UsageError(f"--launcher-config {path}: {error.strerror}.") from None
        lines = [line for line in lines if line.strip() and not line.startswith("#!")]
        options = [line for line in lines if line.startswith(self.directive)]
        return options, [line for line in lines if line not in options]

    def script(self, options: ClusterOptions, given: Sequence[str], invited: str, start: Sequence[str]) -> str:
        """Return a script: `given` are our lines for the scheduler, `start` starts the agents, whose key is in `invited`."""
        extra, prologue = self.config(options.job.config)
        lines = [f"{self.directive} {line}" for line in given]
        return "\n".join(["#!/bin/bash", *lines, *extra, *prologue, f"export {VARIABLE}={invited}", *start, ""])


class SubmittedJob(Job):
    """A job that was submitted to a scheduler.

    Parameters
    ----------
    number : str
    log : Path
        Its output file, which may not exist on this host.
    """

    scheduler: ClassVar[Scheduler]
    delete: ClassVar[str]
    """The command that cancels it."""

    def __init__(self, number: str, log: Path) -> None:
        self.number, self._log = number, log

    def cancel(self) -> None:
        """Cancel the job, and remove its output files."""
        try:
            self.scheduler.ask([self.delete, self.number])
        except ClusterError:
            return  # it has ended or the scheduler cannot be asked: the agents end by themselves, and the job with them
        for log in self._logs():
            log.unlink(missing_ok=True)

    def log(self) -> list[str]:
        """Return the last lines of its output, if the file exists on this host."""
        try:
            return [line for log in self._logs() for line in log.read_text(errors="replace").splitlines()[-20:]]
        except OSError:
            return []

    def _logs(self) -> list[Path]:
        return sorted(self._log.parent.glob(self._log.name))


class ProcessJob(Job):
    """A command that starts the agents and runs as long as they do, such as ``mpiexec``.

    Parameters
    ----------
    number : str
    command : sequence of str
    invited : str
        The agents' invitation.
    environment : mapping, optional
        Additional environment variables for the command.
    """

    settles = 1.5

    def __init__(self, number: str, command: Sequence[str], invited: str, environment: dict[str, str] | None = None) -> None:
        self.number, self._what = number, command[0]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # until the command has ended
        own = {name: value for name, value in os.environ.items() if not re.match(host_agent.OF_A_STEP, name)}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**own, **(environment or {}), VARIABLE: invited},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ClusterError(f"There is no {command[0]} on this host. It is needed to start the agents.") from None

    def state(self) -> JobState:
        """Return whether the command runs."""
        if self._process.poll() is None:
            return JobState(told="RUNNING", phase="runs")
        return JobState(told="COMPLETED", phase="over", end=f"has ended: {self._what} with exit code {self._process.returncode}")

    def cancel(self) -> None:
        """End the command; the allocation around it is not ours."""
        self._process.terminate()
        try:
            self._process.wait(ANSWERED)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> list[str]:
        """Return the last lines of its output."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace").splitlines()[-20:]
