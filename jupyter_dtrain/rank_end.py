"""How a rank's task ended, and what to say of engines that were lost."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from .cluster.cluster import EngineCluster
from .engine.task import Outcome
from .errors import ClusterError
from .protocol import DeviceUse
from .room import ON_HOST, gibibytes

_CRASHES = frozenset({signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})


@dataclass
class RankEnd:
    """How one rank's task ended: with an outcome, or with the engine gone, for a `reason`.

    Then the outcome is what could be saved, if anything. `killed`: by us, because it did not leave when another rank had failed or the
    user had asked.
    """

    rank: int
    outcome: Outcome | None
    reason: str = ""
    killed: bool = False

    @property
    def lost(self) -> bool:
        """Whether the engine is gone, and not by us."""
        return bool(self.reason) and not self.killed


def lost_engines(ends: Sequence[RankEnd], cluster: EngineCluster, uses: Sequence[DeviceUse]) -> ClusterError | None:
    """Return the error to raise where an engine was lost, with the end of its log.

    `uses` is what each rank told last of its device.
    """
    lost = [end for end in ends if end.lost]
    if not lost:
        return None
    engines = {engine.rank: engine for engine in cluster.engines}
    names = ", ".join(f"rank {end.rank} (process {engines[end.rank].pid})" for end in lost)
    first = ends[0].outcome
    if first is not None and first.parcel is not None:
        place = (
            f"step {first.steps}, the last of which there was a snapshot"
            if first.from_snapshot
            else f"its last finished step ({first.steps})"
        )
        # A cell that distributes itself counts no steps.
        state = f"The notebook holds what rank 0 had at {place if first.steps else 'that moment'}."
    else:
        state = "The notebook's objects are as they were before the cell."
    use = next((use for use in uses if use.rank == lost[0].rank), None)
    told = ""
    if use is not None:
        where = "the host's" if engines[use.rank].device == "cpu" else "its device's"
        told = f" (rank {use.rank} held {gibibytes(use.memory_used)} of {where} {gibibytes(use.memory_total)} when it told last)"
    tail = cluster.log_tail(lost[0].rank)
    return ClusterError(
        f"The engine of {names} was lost: {lost[0].reason}. {state} The next %%distribute cell starts a new cluster.\n"
        + _why(cluster.exit_status(lost[0].rank), told)
        + (f"\nThe end of its log:\n{tail}" if tail else "")
    )


def _why(status: int | None, told: str) -> str:
    """Return what may have ended an engine that ended with `status`, and what can be done; `told` is what it held."""
    if status is not None and -status in _CRASHES:
        return (
            f"It was ended by {signal.Signals(-status).name}: compiled code has crashed, PyTorch's or another library's. "
            "If it happens without %%distribute too, it is no matter of the engines; the end of the log may say where it was."
        )
    if status is not None and status >= 0:
        return f"It ended by itself, with status {status}: something in the cell calls os._exit, or a library does."
    return f"If it happens again, the system may have ended it because memory ran out{told}. {ON_HOST}"
