"""What a rank is given to run, and what it reports at the end."""

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

# What the ranks share out, and what stays as on one process.


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """What one rank does of the whole, as the options say. Without any: numbers over the whole batch, the rest each rank for itself.

    Attributes
    ----------
    global_numbers : bool
        Whether the cell sees global batches (`global_view`) or the rank's own.
    global_draws : bool
        Whether models and data sets draw for the whole batch, of which ranks take their rows (`drawing`), or each rank for itself.
    global_batchnorm : bool
        Whether BatchNorm inside models takes the statistics of the whole batch, or each rank those of its share.
    per_rank_batches : bool
        Whether a loader's ``batch_size`` is that of each rank, and not of all of them together.
    split_evaluation : bool
        Whether loaders are split in evaluation too.
    split_inputs : bool
        Whether models in training share out what they are called on where no loader did.
    checkpoint_activations : bool
        Whether repeated blocks of models keep their inputs alone for the backward pass, which computes the rest again.
    one_engine : bool
        Whether the cell runs on one engine of several, as nothing of it seemed to be for more.
    verify : {"auto", "always", "first", "off"}
        Which calls on parts of a batch are compared with those on all of it (`verify`).
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


# From the kernel to the ranks: each of these is the one before it, and more.


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """What a cell begins with besides the notebook's values: random streams, settings of libraries, loggers."""

    random_state: RandomState
    surroundings: ProcessSettings
    loggers: Loggers

    @classmethod
    def now(cls, source: str | None) -> ProcessState:
        """Return those of this process, and of this thread; `source` is that of a cell which belongs to this process."""
        if source is not None:
            for integration in active(source).values():
                integration.before_cell(source)
        return cls(random_state=RandomState.now(), surroundings=ProcessSettings.now(), loggers=Loggers.now())


@dataclass(frozen=True, kw_only=True)
class CellInput(ProcessState):
    """A cell with all that it begins with: the same for each rank and each generation.

    Attributes
    ----------
    source : str
        Plain Python, its line numbers those of the cell.
    filename : str
        What tracebacks call the cell.
    sources : mapping of str to str
        The texts of other cells by file name.
    parcel : Parcel
        The notebook's values.
    options : RunOptions
    strategy : StrategyInfo
        That of the options: how the ranks share the work.
    num_threads : int, optional
        Where one rank is to compute all of it, the threads that PyTorch has in the notebook.
    """

    source: str
    filename: str
    sources: Mapping[str, str]
    parcel: Parcel
    options: RunOptions
    strategy: StrategyInfo
    num_threads: int | None = None

    def shared(self) -> dict[str, Any]:
        """Return what another one of the same cell has too, by name."""
        return {one.name: getattr(self, one.name) for one in fields(CellInput)}


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Where a cell goes on: from snapshot `number` of `world_size` ranks (``None``: from its beginning). `seen` was shown of each rank."""

    number: int | None
    world_size: int
    seen: tuple[Count, ...]

    def seen_of(self, rank: int) -> Count:
        """Return what was shown of `rank`."""
        return self.seen[rank] if rank < len(self.seen) else Count()


@dataclass(frozen=True, kw_only=True)
class Task(CellInput):
    """What every rank is given: the run, and the cell with what it begins with.

    `semantics` says what the cell sees of how the ranks share the work.
    `rendezvous` is ``None`` where there is one rank, unless the cell distributes itself: then `program_port` is a port that is free.
    `resume` is a snapshot to go on from. `pause` is the number of one in which the ranks wait before anything else, 0 for none.
    `generation` counts those of the ranks that run the task.
    `count_targets`: a loss has been given one that it ignores, so they are counted in every batch. `whole` are classes of what is not to be
    given a part of a batch: it has come to something else on one. Models of the classes in `full_batch` keep state of their samples, which
    their first calls do not show.
    In `file_log` rank 0 notes what it does to files. `spans_hosts`: the ranks may be on several hosts.
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
    """What a rank reports at the end.

    Attributes
    ----------
    failure : Failure, optional
        What ended the cell, if it was an exception.
    stopped : bool
        The run was stopped from outside.
    steps : int
        Steps finished.
    count_targets : bool
        The cell is to go on from its last snapshot with the task's `count_targets`.
    go_back : GoBack, optional
        It is to go on from the last step that was checked, with what was found in the task's `whole`.
    full_batch : str
        It is to do so with this class in the task's `full_batch`; empty for none.
    parcel : Parcel, optional
        From rank 0: packed :class:`~.results.Changes` and :class:`~.results.Bound`.
    not_returned : dict of str to str
        Names that stayed on the engine, with the reason.
    random_state : RandomState, optional
        From rank 0: the notebook's random streams continue from it.
    surroundings : ProcessSettings, optional
        From rank 0, if the cell changed them.
    device : str
        Type of the rank's device.
    from_cpu : bool
        What the notebook has on the CPU was on the rank's GPU.
    held : list of Held
        What the rank has shown since it knew that the run does not go on here: to be shown if it goes on nowhere.
    states_missing : bool
        Of optimizers, rank 0 has what it kept itself alone; of the rest, what the notebook had sent.
    from_snapshot : bool
        It is what a snapshot has of a rank that is gone: later steps are lost.
    interrupted : bool
        A signal has interrupted the cell.
    device_failed : bool
        The engine can use its GPU no more, and what is there is lost.
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
        """Whether all ranks are to go on from an earlier step."""
        return self.count_targets or bool(self.full_batch) or self.go_back is not None
