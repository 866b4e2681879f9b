"""The final phase of a run, and the error message for lost engines."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ..cluster.base import Cluster
from ..engine.task import Outcome
from ..errors import ClusterError
from ..protocol import DeviceUse, RunPhase
from ..system.resources import ON_HOST, size_text
from .worker_group import WorkerResult, reasons_of

NAMED = 8
"""Most engines that a message lists; of the rest it gives the number."""
_CRASHES = frozenset({signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})


def phase_of(ends: Sequence[WorkerResult]) -> tuple[RunPhase, str | None]:
    """Return the final phase of a run whose ranks ended with `ends`, and its error in one line, if any."""
    outcomes = [end.outcome for end in ends if end.outcome is not None]
    if any(end.lost for end in ends):
        return "failed", "an engine was lost"
    failures = [o.failure for o in outcomes if o.failure is not None]
    if failures:
        primary = next((f for f in failures if not f.secondary), failures[0])
        if primary.name == "KeyboardInterrupt":
            return "stopped", None
        return "failed", f"{primary.name}: {primary.message}".partition("\n")[0]
    return ("stopped" if any(o.stopped for o in outcomes) or any(end.killed for end in ends) else "finished"), None


def lost_engines(ends: Sequence[WorkerResult], cluster: Cluster, uses: Sequence[DeviceUse]) -> ClusterError | None:
    """Return the error to raise if an engine was lost, with the last output of its process; ``None`` if none was.

    `uses` is the last device use that each rank reported.
    """
    lost = [end for end in ends if end.lost]
    if not lost:
        return None
    if cluster.unreachable:
        return ClusterError(_unreachable(cluster, _state(ends[0].outcome)))
    engines = {engine.rank: engine for engine in cluster.engines}
    names = ", ".join(f"rank {end.rank} (process {engines[end.rank].pid})" for end in lost[:NAMED])
    if len(lost) > NAMED:
        names += f" and {len(lost) - NAMED} more"
    engine, names = ("The engine", f"{names} was") if len(lost) == 1 else ("The engines", f"{names} were")
    use = next((use for use in uses if use.rank == lost[0].rank), None)
    told = ""
    if use is not None:
        total = size_text(use.memory_total)
        of = f"the {total} that it may have" if engines[use.rank].device == "cpu" else f"its device's {total}"
        told = f" (rank {use.rank} held {size_text(use.memory_used)} of {of} when last measured)"
    written = cluster.last_words(lost[0].rank)
    return ClusterError(
        f"{engine} of {names} lost: {reasons_of(lost)}. {_state(ends[0].outcome)} The next %%distribute cell starts a new cluster.\n"
        + _why(cluster.exit_status(lost[0].rank), told)
        + (f"\nIts last output:\n{written}" if written else "")
    )


def _state(first: Outcome | None) -> str:
    """Return a sentence on what the notebook holds, given the outcome of rank 0."""
    if first is None or first.parcel is None:
        return "The notebook's objects are as they were before the cell."
    place = (
        f"step {first.steps}, the last of which there was a snapshot" if first.from_snapshot else f"its last finished step ({first.steps})"
    )
    # A cell that distributes itself counts no steps.
    return f"The notebook holds what rank 0 had at {place if first.steps else 'that moment'}."


def _unreachable(cluster: Cluster, state: str) -> str:
    """Return the message for engines that can no longer be reached, with what the user can do."""
    status = cluster.exit_status(None)
    how = ""
    if status is not None:
        how = f", by {signal.Signals(-status).name}" if status < 0 else f", with status {status}"
    return (
        f"The engines cannot be reached any more: {cluster.unreachable}{how}. {state} Run the cell again: it starts a new cluster.\n"
        "If this repeats, the process is probably being killed by the OOM killer (the system is out of memory)."
    )


def _why(status: int | None, told: str) -> str:
    """Return what may have ended an engine with exit status `status`, and what to do; `told` says how much memory it held."""
    if status is not None and -status in _CRASHES:
        return (
            f"It was ended by {signal.Signals(-status).name}: compiled code has crashed, PyTorch's or another library's. "
            "If it happens without %%distribute too, the engines are not the cause."
        )
    if status is not None and status >= 0:
        return f"It ended by itself, with status {status}: something in the cell calls os._exit, or a library does."
    return f"If this repeats, the process is probably being killed by the OOM killer{told}. {ON_HOST}"
