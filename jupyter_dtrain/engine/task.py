"""What a rank is given to run, and the outcome that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..capture.loggers import Loggers
from ..capture.process_state import ProcessSettings
from ..capture.random_state import RandomState
from ..integrations.registry import active
from ..options import RunOptions, Verify
from ..strategies import StrategyInfo
from ..transport.parcel import Parcel
from .cell import Failure
from .comm.process_group import Rendezvous
from .side_effects.shown_output import Count, Held
from .verify.report import GoBack

# How the ranks share the work.


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """How a rank shares the work, by the options. By default the cell sees global batches, and all else is each rank's own.

    Attributes
    ----------
    global_numbers : bool
        Whether the cell sees global batches (`global_view`) or the rank's own.
    global_draws : bool
        Whether models and datasets draw for the whole batch, of which each rank uses its rows (`drawing`), or each rank for itself.
    global_batchnorm : bool
        Whether BatchNorm inside models uses statistics of the whole batch, or of each rank's share.
    per_rank_batches : bool
        Whether a loader's ``batch_size`` is that of each rank, and not that of the global batch.
    split_evaluation : bool
        Whether loaders are split in evaluation too.
    split_inputs : bool
        Whether inputs of models in training are sharded if no loader has sharded them.
    checkpoint_activations : bool
        Whether repeated blocks of models save only their inputs for the backward pass, which recomputes the rest.
    one_engine : bool
        Whether the cell runs on one of several engines, because it seems to have no work for more.
    verify : {"auto", "always", "first", "off"}
        Which calls on shares of a batch are compared with calls on the full batch (`verify`).
    """

    global_numbers: bool = True
    global_draws: bool = False
    global_batchnorm: bool = False
    per_rank_batches: bool = False
    split_evaluation: bool = False
    split_inputs: bool = False
    checkpoint_activations: bool = False
    one_engine: bool = False
    verify: Verify = "off"


# From the kernel to the ranks: each class extends the one before.


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """Process state at a cell's start, besides the notebook's values: random streams, settings of libraries, loggers."""

    random_state: RandomState
    surroundings: ProcessSettings
    loggers: Loggers

    @classmethod
    def now(cls, source: str | None) -> ProcessState:
        """Return the state of this process and thread; `source` is that of a cell which belongs to this process, if any."""
        if source is not None:
            for integration in active(source).values():
                integration.before_cell(source)
        return cls(random_state=RandomState.now(), surroundings=ProcessSettings.now(), loggers=Loggers.now())


@dataclass(frozen=True, kw_only=True)
class CellInput(ProcessState):
    """A cell with everything that it starts with: the same for each rank and each generation.

    Attributes
    ----------
    source : str
        Plain Python, with the line numbers of the cell.
    filename : str
        The cell's name in tracebacks.
    sources : mapping of str to str
        Source of other cells by file name.
    parcel : Parcel
        The notebook's values.
    options : RunOptions
    strategy : StrategyInfo
        The strategy named by the options.
    num_threads : int, optional
        PyTorch's number of threads in the notebook, for a cell that runs on one rank.
    unsent : frozenset of str
        The notebook's names that were not sent and that the cell may delete.
    imported : frozenset of str, optional
        Modules beside the notebook that it has imported.
    ids : bytes
        What ``id`` returns in the notebook of the objects that come with the cell, if its code asks for it (`serialization.identities`).
    """

    source: str
    filename: str
    sources: Mapping[str, str]
    parcel: Parcel
    options: RunOptions
    strategy: StrategyInfo
    num_threads: int | None = None
    unsent: frozenset[str] = frozenset()
    imported: frozenset[str] | None = None
    ids: bytes = b""

    def shared(self) -> dict[str, Any]:
        """Return the fields that another object for the same cell shares, by name."""
        return {one.name: getattr(self, one.name) for one in fields(CellInput)}


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Where a cell resumes: at snapshot `number` of `world_size` ranks (``None``: from its start). `seen` is each rank's shown output."""

    number: int | None
    world_size: int
    seen: tuple[Count, ...]

    def seen_of(self, rank: int) -> Count:
        """Return how much output of `rank` was shown."""
        return self.seen[rank] if rank < len(self.seen) else Count()


@dataclass(frozen=True, kw_only=True)
class Task(CellInput):
    """What every rank is given: the run, and the cell with everything that it starts with.

    `semantics` says how the ranks share the work. `rendezvous` is ``None`` for one rank, unless the cell distributes itself: then
    `program_port` is a free port. `resume` is the snapshot to resume from. `pause` is the number of a pause that begins before anything
    else, 0 for none. `generation` is the number of the generation that runs the task. `count_targets`: whether non-ignored targets are
    counted in every batch, because a loss has met an ignored one. `whole` names classes that must not get a share of a batch, because they
    gave other results on one. `full_batch` names classes of models that keep state of their samples or draw in a changing order, and of
    data sets that draw, where the first calls and batches do not show it. `file_log` is where rank 0 records file operations.
    `spans_hosts`: whether the ranks may be on several hosts.
    """

    run_id: str
    rank: int
    world_size: int
    rendezvous: Rendezvous | None
    blob_folder: Path
    device: str
    semantics: Semantics
    timeout: timedelta
    snapshot_folder: Path
    program_port: int = 0
    resume: Resume | None = None
    pause: int = 0
    generation: int = 0
    count_targets: bool = False
    whole: tuple[str, ...] = ()
    full_batch: frozenset[str] = frozenset()
    file_log: Path | None = None
    spans_hosts: bool = False
    emit_interval: timedelta = timedelta(milliseconds=200)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome that a rank reports.

    Attributes
    ----------
    rank : int
    failure : Failure, optional
        The exception that ended the cell, if any.
    stopped : bool
        Whether the run was stopped from outside.
    steps : int
        Number of finished steps.
    count_targets : bool
        Whether the cell must resume from its last snapshot with the task's `count_targets`.
    go_back : GoBack, optional
        The cell must resume from the last checked step, with the class found added to the task's `whole`.
    full_batch : str
        The cell must resume with this class added to the task's `full_batch`; empty for none.
    parcel : Parcel, optional
        From rank 0: the packed results.
    not_returned : dict of str to str
        Names that stayed on the engine, with the reason.
    random_state : RandomState, optional
        From rank 0: the notebook's random streams continue from it.
    surroundings : ProcessSettings, optional
        From rank 0, if the cell changed them.
    device : str
        Type of the rank's device.
    from_cpu : bool
        Whether values on the notebook's CPU were on the rank's GPU.
    held : list of Held
        Output buffered since the rank knew that the run does not continue here; shown if it continues nowhere.
    states_missing : bool
        Whether rank 0 has only its own part of optimizer state; the rest is as the notebook had sent it.
    from_snapshot : bool
        Whether this comes from a snapshot of a lost rank: later steps are lost.
    interrupted : bool
        Whether a signal has interrupted the cell.
    device_failed : bool
        Whether the engine can no longer use its GPU, and data on it is lost.
    """

    rank: int
    failure: Failure | None
    stopped: bool
    steps: int
    count_targets: bool = False
    go_back: GoBack | None = None
    full_batch: str = ""
    parcel: Parcel | None = None
    not_returned: dict[str, str] = field(default_factory=dict)
    random_state: RandomState | None = None
    surroundings: ProcessSettings | None = None
    device: str = "cpu"
    from_cpu: bool = False
    held: list[Held] = field(default_factory=list)
    states_missing: bool = False
    from_snapshot: bool = False
    interrupted: bool = False
    device_failed: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether all ranks must resume from an earlier step."""
        return self.count_targets or bool(self.full_batch) or self.go_back is not None
