"""Requests to schedulers, in the formats that several of them share."""

from __future__ import annotations

import re
import shlex

from ...cluster_options import ClusterOptions, JobOptions
from ...errors import UsageError
from .agent_launcher import agent_command, agent_python


def nodes_of(job: JobOptions) -> int:
    """Return the number of nodes."""
    return job.nodes or 1


def cpus_of(options: ClusterOptions, nodes: int) -> int | None:
    """Return the cores to request on each of `nodes`: by default one for each engine."""
    return options.job.cpus or (None if options.num_engines is None else options.num_engines // nodes)


def seconds_of(time: str) -> int:
    """Return a time limit in seconds, given as minutes, ``H:MM:SS`` or ``D-H:MM:SS``, which Slurm accepts too."""
    if time.isdecimal():
        return 60 * int(time)
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", time)
    if found is None:
        raise UsageError(f"--time {time}: give minutes, or hours as in 2:00:00, or days as in 1-12:00:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def hours_of(time: str) -> str:
    """Return a limit as ``H:MM:SS``."""
    minutes, seconds = divmod(seconds_of(time), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def agent_line(options: ClusterOptions, *number: str) -> str:
    """Return the shell command that starts an agent; `number` may be a shell expression."""
    return " ".join([shlex.join(agent_command(agent_python(options))), *number])
