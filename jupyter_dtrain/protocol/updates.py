"""Updates: what the kernel tells JupyterLab about its cluster and the current run."""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import DeviceUse, Notice, TimeSplit
from .message import ClusterPhase, Message, RunPhase


@dataclass(frozen=True, kw_only=True)
class EngineInfo(Message):
    """One engine as the sidebar lists it. `rank` is its place in the cluster."""

    rank: int
    host: str
    pid: int
    device: str
    device_name: str


@dataclass(frozen=True, kw_only=True)
class ClusterUpdate(Message):
    """The cluster as it is now. `detail` is a short sentence while something is under way or went wrong.

    `lost_hosts` are those that engines were to be on and cannot be any more; their ranks are on others, until another cluster starts.
    """

    phase: ClusterPhase
    engines: list[EngineInfo] = field(default_factory=list)
    lost_hosts: list[str] = field(default_factory=list)
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class RunUpdate(Message):
    """The current or last run as it is now. Times in seconds (`started` since the epoch), ``None``: not known (yet).

    `loss` is the last step's. Where it was not finite, which JSON cannot say, it is ``None``, and `odd_loss` is its text: ``nan``, ``inf``.
    `samples_per_second` counts all ranks: over the last few seconds, and over all steps once the run has ended. So do `rows_per_second`
    and `bytes_per_second`, of what data sets of this project have given and read; ``None`` where there is none. `fraction` of the loops
    around its steps is done, and the rest takes the `remaining` seconds at the recent speed: an estimate, which knows of no ``break``.
    `checkpoint` is the step of the last one that was written to disk: what a run goes on from whose kernel has ended. A `detached` run
    goes on without the kernel.
    """

    run_id: str
    name: str
    phase: RunPhase
    world_size: int
    started: float
    elapsed: float
    step: int = 0
    epoch: int | None = None
    batch: int | None = None
    batches: int | None = None
    loss: float | None = None
    odd_loss: str | None = None
    learning_rate: float | None = None
    samples_per_second: float | None = None
    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    fraction: float | None = None
    remaining: float | None = None
    checkpoint: int | None = None
    detached: bool = False
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Points(Message):
    """New points of one curve of a run: columns of equal length. `time` in seconds since the epoch.

    `value` is ``None`` where it was not finite (nan, inf), which JSON cannot say: a gap in the curve. `thinned` says that points were left
    out between those of the curve so far: ``get_curves`` has them.
    """

    run_id: str
    name: str
    step: list[int]
    time: list[float]
    value: list[float | None]
    thinned: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialRun(Message):
    """A run that is one of a cell's trials. `started` is in seconds since the epoch, `elapsed` are seconds until now or its end.

    One that a search has stopped early counts as `pruned_at` a step: what it trained beyond that is taken back.
    """

    run_id: str
    name: str
    started: float
    phase: RunPhase = "running"
    elapsed: float = 0.0
    pruned_at: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrialRuns(Message):
    """All trials of the cell that have begun, in that order: their curves are told as well, beside those of the run that is shown.

    `total` counts those that have not begun too. `over`: nothing more comes of any.
    """

    runs: list[TrialRun]
    total: int = 0
    over: bool = False


@dataclass(frozen=True, kw_only=True)
class DetachedRun(Message):
    """A run of the notebook's folder that no kernel follows: it goes on, or has `ended` and its results wait for a kernel."""

    run_id: str
    ended: bool


@dataclass(frozen=True, kw_only=True)
class Snapshot(Message):
    """Everything a view needs when it opens or reloads: the state so far, then updates follow."""

    version: int
    cluster: ClusterUpdate
    run: RunUpdate | None
    points: list[Points] = field(default_factory=list)
    devices: list[DeviceUse] = field(default_factory=list)
    times: list[TimeSplit] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    trials: TrialRuns | None = None
    detached: list[DetachedRun] = field(default_factory=list)


UPDATES: tuple[type[Message], ...] = (Snapshot, ClusterUpdate, RunUpdate, TrialRuns, Points, DeviceUse, TimeSplit, Notice)
