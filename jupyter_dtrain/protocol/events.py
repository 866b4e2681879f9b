"""Events: what an engine reports to the notebook's kernel about its rank while a cell runs."""

from __future__ import annotations

from dataclasses import dataclass

from .message import Message, Value


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

    Of data sets of this project (``jupyter_dtrain.data``) it has the `rows` that they gave and the `bytes_read` for them, and how many
    seconds all threads and workers were busy with `files`, with computing `partitions`, with `decoding` and with `transforms` of samples:
    they are no parts of the time, as they go on beside it.

    `busiest_line` of `busiest_file` takes most of `other`, and `busiest_code` is what it says; line 0: none stands out.
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
    rows: int = 0
    bytes_read: int = 0
    files: float = 0.0
    partitions: float = 0.0
    decoding: float = 0.0
    transforms: float = 0.0
    busiest_file: str = ""
    busiest_line: int = 0
    busiest_code: str = ""


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
class Hyperparameters(Message):
    """Hyperparameters of the cell by name, told by rank 0 when they are first known.

    What was found in the cell's objects counts when it is told first: later they may have changed, as a scheduler's learning rate. What
    the cell has `given` by name (``dtrain.config``) replaces what was there.
    """

    rank: int
    values: dict[str, Value]
    given: bool = False


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken(Message):
    """A rank has written its part of snapshot `number`, after `step` steps, at `place` in the cell.

    It took `seconds` of the rank's time, in its step and of the processor beside it; `keys` are the buffers that it refers to. The
    snapshot counts when all ranks have written theirs at one step and place; an empty `place` says that it could not be written.
    Nobody has to ask for it where `best` is the metric of ``--best``, which has never been better, or `at_multiple` says that it is the
    first after a multiple of the steps of ``--checkpoint-every``.
    """

    rank: int
    number: int
    step: int
    place: str
    seconds: float
    keys: list[str]
    best: float | None = None
    at_multiple: bool = False


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
class ShardLeft(Message):
    """A rank that fails has left what it alone keeps of optimizers in the file `name` beside its snapshots, for rank 0 on another host."""

    rank: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Notice(Message):
    """One line for the user about what was done with the cell (a loader that was not split, and why)."""

    rank: int
    text: str


RECORDED_EVENTS: tuple[type[Message], ...] = (
    RankStarted,
    Steps,
    Progress,
    Extent,
    DeviceUse,
    TimeSplit,
    Scalars,
    Hyperparameters,
    Notice,
)
"""Events in the record of a run."""
ENGINE_EVENTS: tuple[type[Message], ...] = (*RECORDED_EVENTS, SnapshotTaken, StateSize, Paused, Standing, Homeward, ShardLeft)
"""All events; those that are not recorded are for the supervision of ranks."""
