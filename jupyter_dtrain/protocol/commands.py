"""Commands: requests of JupyterLab to the kernel, and the kernel's replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .message import Message, RunPhase, Value
from .updates import Points

SessionCommand = Literal[
    "stop_run",
    "stop_trial",
    "pause_run",
    "resume_run",
    "checkpoint_now",
    "roll_back",
    "start_cluster",
    "stop_cluster",
    "restart_engine",
]
"""Commands that act on engines."""
RunCommand = Literal[
    "list_runs", "get_curves", "get_output", "compare_runs", "find_cell", "share_run", "rename_run", "tag_run", "delete_run"
]
"""Commands about the record of runs."""
CheckpointCommand = Literal["list_checkpoints", "pin_checkpoint", "delete_checkpoint", "export_checkpoint"]
"""Commands about checkpoints on disk."""
CommandName = Literal[SessionCommand, RunCommand, CheckpointCommand]


@dataclass(frozen=True, kw_only=True)
class Command(Message):
    """A control that was used, or a question about past runs.

    `num_engines` belongs to ``start_cluster`` (``None``: as many as there are devices), `rank` to ``restart_engine`` and to ``get_output``,
    which returns what that rank has printed. `run_id` names the run that a command is about, `other_run_id` the later one of
    ``compare_runs``. ``get_curves`` returns all curves but those of devices, these where `curve` is ``device/``, or the one called `curve`,
    from step `first` to step `last`, of at most `limit` points each. `text` is the new name, or the tags with commas between them. `step`
    names a checkpoint of the run, which ``pin_checkpoint`` keeps if `pinned` is true.
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


@dataclass(frozen=True, kw_only=True)
class CurveSummary(Message):
    """One curve of a run in short: its last value, the smallest and the largest; ``None``: not a number, or not known."""

    name: str
    last: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Sweep(Message):
    """A cell that was tried with several values: which one, what it is called, and how many trials there are, begun or not."""

    sweep_id: str
    name: str
    trials: int


@dataclass(frozen=True, kw_only=True)
class PastRun(Message):
    """One run of the folder's record. `loss` is the last one recorded; times in seconds since the epoch.

    `metrics` are its curves but those of devices. `best` names the one by which its checkpoints or trials are compared, and whether
    less of it is better (``val_loss:min``). `sweep`: it is a trial of that.
    """

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
    hyperparameters: dict[str, Value] = field(default_factory=dict)
    metrics: list[CurveSummary] = field(default_factory=list)
    best: str | None = None
    sweep: Sweep | None = None


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
    """A hyperparameter, an argument or a version that differs between two runs; ``None`` where a run has none of that name."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class FunctionChange(Message):
    """A function or class of the notebook that differs between two runs: a unified diff by lines."""

    name: str
    lines: list[str]


@dataclass(frozen=True, kw_only=True)
class Comparison(Message):
    """What changed from the run `before` to the run `after`. `cell` is a unified diff of their cells by lines, empty if they are equal.

    `functions` are those that the cells use. What the `hyperparameters` say is not said again in `changes`. `unknown` names runs whose
    hyperparameters are not recorded, as an older version has written them.
    """

    before: str
    after: str
    changes: list[Change]
    cell: list[str]
    hyperparameters: list[Change] = field(default_factory=list)
    functions: list[FunctionChange] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


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
class RunOutput(Message):
    """What a rank of a run has printed: the end of it, if `is_cut`. `ranks` are those that have printed something."""

    run_id: str
    rank: int
    ranks: list[int]
    text: str
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class Reply(Message):
    """The answer to the command with this `id`. `message` says what was done, or why it was not.

    `runs` answers ``list_runs``, the newest first, `points` ``get_curves``, `comparison` ``compare_runs`` and `cell`
    ``find_cell``; `checkpoints`, the newest first, and the `free_bytes` of their disk answer ``list_checkpoints``, and `paths` are what
    ``export_checkpoint`` has written. `output` answers ``get_output``, `page` ``share_run``: all of a run as the text of an HTML file.
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
    page: str | None = None
    output: RunOutput | None = None
