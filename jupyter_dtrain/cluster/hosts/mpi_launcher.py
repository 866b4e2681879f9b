"""Launcher that starts agents by ``mpiexec``: on the hosts of ``--hosts``, or on the nodes of the notebook's allocation.

MPI only starts the agents; ranks communicate as everywhere. So any MPI works, and mpi4py is not needed.
"""

from __future__ import annotations

import os
import shlex
import subprocess

from ...cluster_options import ClusterOptions, JobOptions
from ...errors import ClusterError, UsageError
from .agent_launcher import agent_command, agent_python
from .agent_streams import VARIABLE
from .batch_job import Job, ProcessJob
from .batch_launcher import BatchLauncher
from .job_requests import nodes_of

ANSWERED = 10.0
"""Seconds for ``mpiexec`` to report its version."""
ALONE = {
    "OMPI_MCA_orte_enable_recovery": "1",
    "OMPI_MCA_orte_abort_on_non_zero_status": "0",
    "PRTE_MCA_prte_enable_recovery": "1",
    "PRTE_MCA_prte_abort_on_non_zero_status": "0",
    "I_MPI_PIN": "0",
}
"""Environment with which Open MPI keeps the other agents when one ends (MPICH has an option), and Intel MPI pins none to a core."""


class MpiLauncher(BatchLauncher):
    """Start an agent on each host by ``mpiexec``."""

    name, picks_nodes = "mpi", "mpiexec"

    def check_cluster(self, options: ClusterOptions) -> None:
        """Raise a `UsageError` for options of a scheduler's job, or for contradictory numbers of engines."""
        if options.job != JobOptions(nodes=options.job.nodes):
            raise UsageError("--launcher mpi submits no job. Remove the options of a job, except --nodes.")
        if options.hosts and options.num_engines is not None:
            raise UsageError(f"--engines {options.num_engines}: --hosts says how many engines there are, as in --hosts a:2,b:2.")
        if options.hosts:
            self.check_device(options)
        else:
            super().check_cluster(options)

    def nodes(self, options: ClusterOptions) -> int:
        """Return the number of hosts."""
        return len(options.hosts) or nodes_of(options.job)

    def engines_each(self, options: ClusterOptions) -> list[int | None]:
        """Return the number of engines for each host."""
        return [host.num_engines for host in options.hosts] or super().engines_each(options)

    def script_of(self, options: ClusterOptions, invited: str) -> str:
        """Return the shell command."""
        return "\n".join([f"export {VARIABLE}={invited}", shlex.join(self._command(options))])

    def submit(self, options: ClusterOptions, invited: str) -> Job:
        """Run the command."""
        own = {name: value for name, value in os.environ.items() if name.startswith(("OMPI_MCA_", "OMPI_ALLOW_"))}
        return ProcessJob("mpiexec", self._command(options), invited, {**ALONE, **own})

    def _command(self, options: ClusterOptions) -> list[str]:
        """Return the command that starts one agent per host, with the options of the installed MPI."""
        hosts = ",".join(host.name for host in options.hosts)
        start = ["mpiexec", "-n", str(self.nodes(options))]
        if "OpenRTE" in (said := _version()) or "Open MPI" in said or "prte" in said:
            where = ["--host", hosts] if hosts else []
            how = ["--map-by", "ppr:1:node", "--bind-to", "none", "-x", VARIABLE]
        else:  # MPICH and its derivatives
            where = ["-hosts", hosts] if hosts else []
            how = ["-ppn", "1", "-disable-auto-cleanup", "-genvlist", VARIABLE]
        return [*start, *where, *how, *agent_command(agent_python(options))]


def _version() -> str:
    try:
        told = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True, timeout=ANSWERED, check=False)
    except FileNotFoundError:
        raise ClusterError("There is no mpiexec here. Install MPI on the notebook's host, or use --launcher ssh.") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"`mpiexec --version` has not answered within {ANSWERED:g} s.") from None
    return told.stdout + told.stderr
