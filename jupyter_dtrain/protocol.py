"""Events and commands: everything that crosses a process boundary while a run goes on, defined once.

Three roads use these types. Engines send *events* to the notebook kernel (over ipyparallel's IOPub channel, in
batches); the kernel sends *updates* to JupyterLab (over the telemetry comm) and gets *commands* back (over the
command comm). Each message is a frozen dataclass; on the wire it is a JSON object whose ``type`` names the
class in snake case. ``labextension/src/protocol.ts`` is generated from this file, and a test fails when they differ.

Columns (lists of equal length) rather than rows carry what comes many times a second: one step is then a few
numbers and not a few objects.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from .errors import ProtocolError

PROTOCOL_VERSION = 2
TELEMETRY_TARGET = "jupyter_dtrain:telemetry"
COMMAND_TARGET = "jupyter_dtrain:commands"
RECORD_TARGET = "jupyter_dtrain:record"  # for commands about past runs: a long answer keeps no other command waiting

ClusterPhase = Literal["stopped", "starting", "running", "stopping"]
RunPhase = Literal["starting", "running", "paused", "stopping", "finished", "stopped", "failed"]
CommandName = Literal[
    "stop_run",
    "pause_run",
    "resume_run",
    "checkpoint_now",
    "roll_back",
    "start_cluster",
    "stop_cluster",
    "restart_engine",
    "list_runs",
    "get_curves",
    "compare_runs",
    "find_cell",
    "rename_run",
    "tag_run",
    "delete_run",
    "list_checkpoints",
    "pin_checkpoint",
    "delete_checkpoint",
    "export_checkpoint",
]

RUN_PHASES_ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed"})


@dataclass(frozen=True, kw_only=True)
class Message:
    """Base of everything on the wire."""

    type: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """Return the message as a JSON object with its ``type``."""
        return {"type": self.type, **asdict(self)}


# -- engine → kernel -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RankStarted(Message):
    """A rank has joined the run.

    `device` is torch's name of the device (``"cpu"``, ``"cuda:0"``), `device_name` the hardware's own.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    device: str
    device_name: str


@dataclass(frozen=True, kw_only=True)
class Steps(Message):
    """Optimizer steps that one rank finished since its last message: columns of equal length.

    `loss` is the rank's own loss, a mean over its `samples`; ``None`` where no loss was seen. The mean over the global batch is the
    mean over ranks weighted by `weight`, the rank's part of the global batch (the weights of one step add up to 1).
    `time` is in seconds since the epoch. `samples` counts the rank's own samples.
    """

    rank: int
    step: list[int]
    time: list[float]
    loss: list[float | None]
    weight: list[float]
    learning_rate: list[float | None]
    samples: list[int]


@dataclass(frozen=True, kw_only=True)
class Progress(Message):
    """Where rank 0 is in its training loader: `batch` of `batches` (``None``: unknown) in pass `epoch`, both from 1.

    `step` is the number of optimizer steps that were finished when the batch was drawn.
    """

    rank: int
    epoch: int
    batch: int
    batches: int | None
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Extent(Message):
    """Which `fraction` of the loops around the cell's steps was done at `time` seconds since the epoch. Told where they have a length."""

    rank: int
    time: float
    fraction: float


@dataclass(frozen=True, kw_only=True)
class DeviceUse(Message):
    """How busy a rank's device is, at `time` seconds since the epoch.

    `utilization` is in percent of the device (on CPU: of the cores that the engine may use), memory in bytes
    (on CPU: of the engine's processes, what they share counted once, and of the host). `temperature` is in degrees Celsius and `power`
    in watts, ``None`` where the device does not tell.
    """

    rank: int
    time: float
    utilization: float
    memory_used: int
    memory_total: int
    temperature: float | None = None
    power: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimeSplit(Message):
    """Where the time of one rank has gone since the cell began, in seconds by part: together they are all of it.

    `data` was spent waiting for batches, `communication` waiting for other ranks or for what they send, `other` in the cell's own code
    between the parts. `step` is the number of steps finished. `num_workers` is that of the loader whose batch came last, ``None``
    before the first.
    """

    rank: int
    step: int
    data: float
    forward: float
    backward: float
    communication: float
    optimizer: float
    other: float
    num_workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scalars(Message):
    """Values that the cell logged by name (``dtrain.log``): columns of equal length.

    `first` is the number of the first of them among all of this name, from 0: a run that goes on from a snapshot tells some again.
    """

    rank: int
    name: str
    first: int
    step: list[int]
    time: list[float]
    value: list[float]


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken(Message):
    """A rank has written its part of snapshot `number`, after `step` steps, at `place` in the cell.

    It took `seconds` of the rank's time, in its step and of the processor beside it; `keys` are the buffers that it refers to. The
    snapshot counts when all ranks have written theirs at one step and place; an empty `place` says that it could not be written.
    `best` is the metric of ``--best`` where it has never been better: then nobody had to ask for the snapshot.
    """

    rank: int
    number: int
    step: int
    place: str
    seconds: float
    keys: list[str]
    best: float | None = None


@dataclass(frozen=True, kw_only=True)
class StateSize(Message):
    """A rank's snapshots will take about `seconds` each, as its state is large. Told once, after the first step."""

    rank: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Paused(Message):
    """A rank waits, after `step` steps, in pause `number` of the run. The run is paused when all do."""

    rank: int
    number: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Standing(Message):
    """Where a rank is: the user's `line` of `filename`, in `function`; 0 at the end of the cell. `waiting`: for the other ranks."""

    rank: int
    filename: str
    line: int
    function: str
    waiting: bool


@dataclass(frozen=True, kw_only=True)
class Homeward(Message):
    """A rank takes home what the cell has made, and is to be left in peace for `seconds` more. Told again and again meanwhile."""

    rank: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Notice(Message):
    """One line for the user about what was done with the cell (a loader that was not split, and why)."""

    rank: int
    text: str


# -- kernel → JupyterLab -------------------------------------------------------------------------------------------


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
    """The cluster as it is now. `detail` is a short sentence while something is under way or went wrong."""

    phase: ClusterPhase
    engines: list[EngineInfo] = field(default_factory=list)
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class RunUpdate(Message):
    """The current or last run as it is now. Times in seconds (`started` since the epoch), ``None``: not known (yet).

    `loss` is the last step's, ``None`` too where it was not finite. `samples_per_second` counts all ranks: over the last few seconds, and
    over all steps once the run has ended. `fraction` of the loops around its steps is done, and the rest takes the `remaining` seconds at
    the speed of late: an estimate, which knows of no ``break``. `checkpoint` is the step of the last one that was written to disk: what a
    run goes on from whose kernel has ended. A `detached` run goes on without the kernel.
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
    learning_rate: float | None = None
    samples_per_second: float | None = None
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
class Snapshot(Message):
    """Everything a view needs when it opens or reloads: the state so far, then updates follow."""

    version: int
    cluster: ClusterUpdate
    run: RunUpdate | None
    points: list[Points] = field(default_factory=list)
    devices: list[DeviceUse] = field(default_factory=list)
    times: list[TimeSplit] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PastRun(Message):
    """One run of the folder's record. `loss` is the last one recorded; times in seconds since the epoch."""

    run_id: str
    number: int
    name: str
    tags: list[str]
    phase: RunPhase
    world_size: int
    started: float
    ended: float | None
    error: str | None
    steps: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo(Message):
    """A checkpoint on disk, of the state after `step` steps. `time` in seconds since the epoch.

    `epoch` is that of the curve (1.5: half way through the second pass) and `loss` that of the step, ``None`` where they are not known.
    `metric` is the value of what `metric_name` says, where ``--best`` asks for it, and `best` marks the best of the run.
    `place` is where in the cell it goes on. `num_bytes` counts buffers that other checkpoints share too. One that is `pinned` stays until
    it is deleted.
    """

    run_id: str
    step: int
    place: str
    epoch: float | None
    loss: float | None
    num_bytes: int
    time: float
    world_size: int
    pinned: bool
    best: bool = False
    metric_name: str | None = None
    metric: float | None = None


@dataclass(frozen=True, kw_only=True)
class Change(Message):
    """An argument or a version that differs between two runs; ``None`` where a run has none of that name."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison(Message):
    """What changed from the run `before` to the run `after`. `cell` is a unified diff of their cells by lines, empty if they are equal."""

    before: str
    after: str
    changes: list[Change]
    cell: list[str]


@dataclass(frozen=True, kw_only=True)
class RunCell(Message):
    """The cell that made a run: its text below the line of the magic, and where it was then; ``None``: not known.

    `notebook` is the name of a file beside the folder of runs.
    """

    run_id: str
    text: str
    cell_id: str | None
    notebook: str | None


@dataclass(frozen=True, kw_only=True)
class Reply(Message):
    """The answer to the command with this `id`. `message` says what was done, or why it was not.

    `runs` answers ``list_runs``, the newest first, `points` ``get_curves``, `comparison` ``compare_runs`` and `cell`
    ``find_cell``; `checkpoints`, the newest first, and the `free_bytes` of their disk answer ``list_checkpoints``, and `paths` are what
    ``export_checkpoint`` has written.
    """

    id: str
    ok: bool
    message: str
    runs: list[PastRun] = field(default_factory=list)
    points: list[Points] = field(default_factory=list)
    comparison: Comparison | None = None
    cell: RunCell | None = None
    checkpoints: list[CheckpointInfo] = field(default_factory=list)
    free_bytes: int | None = None
    paths: list[str] = field(default_factory=list)


# -- JupyterLab → kernel -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Command(Message):
    """A control that was used, or a question about past runs.

    `num_engines` belongs to ``start_cluster`` (``None``: as many as there are devices), `rank` to ``restart_engine``. `run_id` names the
    run that a command is about, `other_run_id` the later one of ``compare_runs``. ``get_curves`` returns all curves, or the one called
    `curve`, from step `first` to step `last`, of at most `limit` points each. `text` is the new name, or the tags with commas between
    them. `step` names a checkpoint of the run, which ``pin_checkpoint`` keeps if `pinned` is true.
    """

    id: str
    name: CommandName
    num_engines: int | None = None
    rank: int | None = None
    run_id: str | None = None
    other_run_id: str | None = None
    curve: str | None = None
    first: int | None = None
    last: int | None = None
    limit: int | None = None
    text: str | None = None
    step: int | None = None
    pinned: bool | None = None


ENGINE_EVENTS: tuple[type[Message], ...] = (
    RankStarted,
    Steps,
    Progress,
    Extent,
    DeviceUse,
    TimeSplit,
    Scalars,
    SnapshotTaken,
    StateSize,
    Paused,
    Standing,
    Homeward,
    Notice,
)
UPDATES: tuple[type[Message], ...] = (Snapshot, ClusterUpdate, RunUpdate, Points, DeviceUse, TimeSplit, Notice)
_MESSAGES: tuple[type[Message], ...] = (*ENGINE_EVENTS, *UPDATES, Reply, Command)
_BY_TYPE = {cls.type: cls for cls in _MESSAGES}
_NAMES = {cls: frozenset(f.name for f in fields(cls)) for cls in _MESSAGES}


def parse(data: dict[str, Any]) -> Message:
    """Return the flat message that `data` holds (engine events and commands; nested ones only travel outward).

    Raises
    ------
    ProtocolError
        The type is unknown, a field is missing or extra, or a command's name is unknown.
    """
    cls = _BY_TYPE.get(str(data.get("type")))
    if cls is None:
        raise ProtocolError(f"message of unknown type {data.get('type')!r}: are both sides of the same version?")
    values = data.copy()
    del values["type"]
    names = _NAMES[cls]
    if values.keys() == names and cls is not Command:
        # All is there, as in what comes hundreds of times a second. A frozen class's own way, field by field, takes three times as long.
        message = cls.__new__(cls)
        message.__dict__.update(values)
        return message
    unknown = values.keys() - names
    if unknown:
        raise ProtocolError(f"message {cls.type!r} has unknown fields {sorted(unknown)}: are both sides of the same version?")
    if cls is Command and values.get("name") not in get_args(CommandName):
        raise ProtocolError(f"unknown command {values.get('name')!r}; known are {', '.join(get_args(CommandName))}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ProtocolError(f"message {cls.type!r}: {error}") from error
