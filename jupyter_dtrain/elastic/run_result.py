"""The result of a run: values for the notebook, and engines to restart before the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..engine.task import Outcome, Task
from ..errors import ClusterError
from ..protocol import DeviceUse
from ..serialization.pickler import Packed
from ..transport.blob_store import BlobFolder
from ..transport.parcel import from_parcel
from .agent import Agent
from .engine_pool import EnginePool
from .failure_report import lost_engines
from .main_thread_output import Output
from .worker_group import WorkerResult


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes
    ----------
    ends : list of WorkerResult
        How each rank ended, in rank order.
    returned : Packed, optional
        The values that rank 0 sent back.
    lost : ClusterError, optional
        Error to raise if an engine was lost.
    interrupted : bool
        Whether there was a keyboard interrupt.
    task : Task
        The ranks' task.
    taken : callable
        Must be called once the results are in the notebook.
    """

    ends: list[WorkerResult]
    returned: Packed | None
    lost: ClusterError | None
    interrupted: bool
    task: Task
    taken: Callable[[], None] = lambda: None

    @property
    def first(self) -> Outcome | None:
        """The outcome of rank 0, which holds the results."""
        return self.ends[0].outcome


def left_by(
    ends: list[WorkerResult],
    task: Task,
    supervisor: Agent,
    engines: EnginePool,
    devices: Sequence[DeviceUse],
    output: Output,
    *,
    interrupted: bool,
) -> RunResult:
    """Return the result of a run whose ranks ended with `ends`; restart engines in the background that the next run cannot use."""
    first, cluster = ends[0].outcome, supervisor.cluster
    if first is not None and first.parcel is not None:
        cluster.files.fetch(first.parcel.keys, 0)
    # Mapped now: a mapping outlives the folder, which is deleted with a cluster that has lost an engine.
    returned = from_parcel(first.parcel, BlobFolder(cluster.blob_dir)) if first is not None and first.parcel is not None else None
    lost = lost_engines(ends, cluster, devices) if not supervisor.interrupted else None
    left = [rank for rank in supervisor.restarts.close() if rank < len(cluster.engines)]
    killed = [end.rank for end in ends if end.killed] if not supervisor.interrupted else cluster.missing_ranks()
    failed = [end.rank for end in ends if end.outcome is not None and end.outcome.device_failed]
    if lost is not None or not cluster.controller_alive:
        engines.stop(is_lost=True)
    elif left or killed or failed:
        if left:
            output.say(f"The run has ended before {_engines_of(left)} restarted: that is done now.")
        engines.begin_restart(cluster, sorted({*left, *killed, *failed}))
    elif supervisor.interrupted:
        engines.show()  # an engine may just have been replaced
    return RunResult(ends, returned, lost, interrupted or supervisor.interrupted or supervisor.pressed, task)


def _engines_of(ranks: list[int]) -> str:
    told = ", ".join(map(str, ranks))
    return f"the engine of rank {told} was" if len(ranks) == 1 else f"the engines of ranks {told} were"
