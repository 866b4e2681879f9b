"""Options of a run: a keyword-only dataclass that validates itself, with the options of its cluster (`cluster_options.py`) inside.

The magics parse a line into these; everything below `notebook/` receives them and never sees a command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Literal, get_args

from .cluster_options import ClusterOptions
from .errors import UsageError
from .parallel_dims import ParallelDims
from .search import Range, Search
from .shard_patterns import ShardPattern
from .strategies import DEFAULT, NEEDS, find, is_default

Semantics = Literal["global", "local"]
BatchSize = Literal["global", "per-rank"]
OverRanks = Literal["auto", "global", "per-rank"]
ShownOutput = Literal["main", "all"]
Balance = Literal["auto", "off"]
View = Literal["live", "summary", "off"]
Compress = Literal["none", "bf16", "fp16"]
Verify = Literal["auto", "always", "first", "off"]
KeepInputs = Literal["auto", "always", "never"]
_CHOICES = {
    "semantics": Semantics,
    "batch_size": BatchSize,
    "rng": OverRanks,
    "batchnorm": OverRanks,
    "output": ShownOutput,
    "view": View,
    "balance": Balance,
    "compress": Compress,
    "verify": Verify,
    "keep_inputs": KeepInputs,
}


@dataclass(frozen=True)
class Metric:
    """A metric to compare runs: a curve that the cell logs as `name`, or its variable. `mode` tells whether smaller or larger is better."""

    name: str
    mode: Literal["min", "max"] = "min"

    def is_better(self, value: float, than: float) -> bool:
        """Return whether `value` is better than `than`."""
        return value < than if self.mode == "min" else value > than


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run one cell.

    Attributes
    ----------
    cluster : ClusterOptions
        The cluster to start if none is running; a running one must match.
    name : str, optional
        Name of the run in lists; by default a number.
    strategy : str
        How the cell is distributed, by the name of a :class:`~.strategies.StrategyInfo`: ``auto`` shards batches and reduces gradients;
        ``zero1`` also shards optimizer state and the updating of parameters; ``zero3`` also shards parameters and gradients; ``pipeline``
        has one stage of each model on each engine; ``tensor`` has some columns of each large linear layer; ``none`` runs the cell as
        ``torchrun`` runs a script, for code that distributes itself.
    mesh : ParallelDims, optional
        Number of engines along each axis, which determines the number of engines and the strategy that shards a model; by default all are
        along the axis of the strategy.
    shard : tuple of ShardPattern
        How to shard the parameters that these name, if the strategy shards parameters by name.
    split : tuple of str
        Names of tensors to shard along dim 0 as if a loader had yielded them: for cells that train on all data at once.
    split_inputs : bool
        Whether models in training shard their inputs along dim 0 if no loader has: for cells that draw their batches by index, or train on
        all data at once.
    replicate : bool
        Whether every engine computes a cell that cannot be sharded; by default one does.
    preview : bool
        Only report what would be sent.
    checkpoint_every : timedelta or int, optional
        Time or steps between two checkpoints on disk. With steps, they are at multiples of the number, or at the first place after one
        where the cell can resume. By default they are written from time to time, and deleted when the run has finished.
    keep_checkpoints : int
        Number of checkpoints to keep.
    best : Metric, optional
        Metric whose best checkpoint is kept too.
    elastic : (int, int), optional
        Minimum number of engines to continue with if lost ones cannot be replaced, and full number to return to; by default the run ends.
    keep_secrets : bool
        Whether environment variables that look like secrets are written to disk with checkpoints; by default a kernel that resumes from
        one needs to have them.
    keep_inputs : {"auto", "always", "never"}
        Whether the record keeps the values that the cell starts with, so that it can be run again: ``auto`` up to 64 MiB.
    memory_limit : int, optional
        Bytes of tensors per engine by which ``auto`` chooses a strategy; by default the machine's memory for an engine.
    semantics : {"global", "local"}
        What the cell reads from a sharded batch: values over the global batch, or over the rank's share.
    batch_size : {"global", "per-rank"}
        Whether a loader's ``batch_size`` is the number of samples in a step, or of each rank in a step.
    split_eval : bool
        Whether loaders are split in evaluation too. Always so with batches per rank.
    rng : {"auto", "global", "per-rank"}
        How models (dropout, noise) and data sets (augmentation) draw random numbers: for the full batch, as one process does, or on each
        rank for its share, which is faster. ``auto`` draws for the full batch on CPUs.
    batchnorm : {"auto", "global", "per-rank"}
        Statistics of BatchNorm: over the full batch, as one process has, with an all-reduce in each layer, or over each rank's share.
        ``auto`` uses the full batch on CPUs.
    checkpoint_activations : bool
        Whether repeated blocks of models keep only their inputs for the backward pass and recompute the rest: less memory for more time.
    output : {"main", "all"}
        Whose output is shown: rank 0's, or every rank's with its number in front of each line.
    view : {"live", "summary", "off"}
        Output below the cell: live (progress, then a summary), summary, or off.
    balance : {"auto", "off"}
        Whether the shares of a batch follow the speed of the engines; otherwise they are equal.
    compress : {"none", "bf16", "fp16"}
        How gradients are exchanged: unchanged, or rounded to 16 bits, with half the bytes or less; the numbers then differ.
    sync_every : int
        Steps between two exchanges: each engine steps on the gradient of its share of a batch, and parameters are averaged at an exchange.
        With 1, gradients are exchanged in each step; with other values, the numbers differ.
    verify : {"auto", "always", "first", "off"}
        Which calls on shares of a batch are compared with calls on the full batch: those that take at most a hundredth of the run's time,
        all, the first and as many later ones, or none. Strategies and options that change numbers have no ``auto``.
    detach : bool
        Whether the run continues when the kernel ends, with its own engines and a host process.
    vary : tuple of (str, str)
        Names to try the cell with several values of, each with an expression for the values. Of a single trial: each with the text of its
        value.
    search : Search, optional
        How trials are chosen among the values, which may be ranges then; by default all combinations are tried.
    engines_per_trial : int
        Engines per trial.
    """

    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    name: str | None = None
    strategy: str = DEFAULT
    mesh: ParallelDims | None = None
    shard: tuple[ShardPattern, ...] = ()
    memory_limit: int | None = None
    semantics: Semantics = "global"
    split: tuple[str, ...] = ()
    split_inputs: bool = False
    replicate: bool = False
    preview: bool = False
    batch_size: BatchSize = "global"
    split_eval: bool = False
    rng: OverRanks = "auto"
    batchnorm: OverRanks = "auto"
    checkpoint_activations: bool = False
    output: ShownOutput = "main"
    balance: Balance = "off"
    compress: Compress = "none"
    sync_every: int = 1
    verify: Verify = "auto"
    checkpoint_every: timedelta | int | None = None
    keep_checkpoints: int = 2
    best: Metric | None = None
    elastic: tuple[int, int] | None = None
    keep_secrets: bool = False
    keep_inputs: KeepInputs = "auto"
    view: View = "live"
    detach: bool = False
    vary: tuple[tuple[str, str], ...] = ()
    search: Search | None = None
    engines_per_trial: int = 1

    def __post_init__(self) -> None:
        for option, known in _CHOICES.items():
            value = getattr(self, option)
            if value not in get_args(known):
                raise UsageError(f"--{option.replace('_', '-')} {value}: choose {' or '.join(get_args(known))}.")
        if self.mesh is not None:
            object.__setattr__(self, "strategy", self.mesh.strategy_of(self.strategy))
            self._set_num_engines(self.mesh.engines_of(self.cluster.num_engines))
        self._check_strategy()
        if self.memory_limit is not None and (not is_default(self.strategy) or self.mesh is not None or self.vary):
            other = f"--mesh {self.mesh}" if self.mesh is not None else "--vary" if self.vary else f"--strategy {self.strategy}"
            raise UsageError(f"--memory-limit is for --strategy auto, which chooses by it: leave out {other}.")
        if self.keep_checkpoints < 1:
            raise UsageError(f"--keep-checkpoints {self.keep_checkpoints}: at least one checkpoint stays; give a number from 1 up.")
        for option, given in (("--split", self.split), ("--split-inputs", self.split_inputs)):
            if given and self.semantics == "local":
                raise UsageError(f"{option} needs the global view: leave out --semantics local.")
        if self.elastic is not None:
            least, most = self.elastic
            if not 1 <= least <= most:
                raise UsageError(f"--elastic {least}:{most}: give the minimum and the full number of engines, such as 2:4.")
            if self.mesh is not None:
                raise UsageError(f"--elastic changes the number of engines, and --mesh {self.mesh} sets it: leave out one of the two.")
            if self.cluster.num_engines not in (None, most):
                raise UsageError(f"--elastic {least}:{most} starts {most} engines: leave out --engines {self.cluster.num_engines}.")
            if self.balance == "auto":
                raise UsageError("--elastic and --balance auto cannot be combined yet: omit one of them.")
            self._set_num_engines(most)
        if self.batch_size == "per-rank":
            object.__setattr__(self, "split_eval", True)
        self._check_less_communication()
        self._check_trials()

    def _set_num_engines(self, number: int) -> None:
        if not self.cluster.hosts:  # hosts determine the number
            object.__setattr__(self, "cluster", replace(self.cluster, num_engines=number))

    def _check_less_communication(self) -> None:
        if self.sync_every < 1:
            raise UsageError(f"--sync-every {self.sync_every}: give the steps from one exchange to the next, from 1 up.")
        given = [f"--compress {self.compress}"] * (self.compress != "none") + [f"--sync-every {self.sync_every}"] * (self.sync_every > 1)
        if given and self.verify not in ("auto", "off"):
            raise UsageError(f"--verify compares with one process, and {given[0]} changes numbers: leave out one of the two.")
        if len(given) > 1:
            raise UsageError(f"{given[0]} is about gradients, which {given[1]} does not exchange: leave out one of the two.")
        if self.sync_every > 1 and self.semantics == "local":
            raise UsageError(f"{given[0]} needs the global view: leave out --semantics local.")
        if self.sync_every > 1 and self.best is not None:
            raise UsageError(f"--best keeps an epoch's last checkpoint; {given[0]} has some after exchanges alone: leave out one of them.")

    def _check_strategy(self) -> None:
        strategy = find(self.strategy)
        for option in fields(self):
            if option.name in NEEDS and getattr(self, option.name) != option.default:
                strategy.require(NEEDS[option.name], f"--{option.name.replace('_', '-')}", advice=": leave out one of the two")

    def _check_trials(self) -> None:
        for target, expression in self.vary:
            if Range.parse(expression, varied := f"--vary {target}={expression}") is not None and self.search is None:
                raise UsageError(f"{varied}: a range is for a search: add --search random:20, or give values, such as {target}=0.1,0.01.")
        if self.search is not None and not self.vary:
            raise UsageError(f"--search {self.search} needs --vary: what is searched, such as --vary lr=log:1e-4..1e-1.")
        if self.search is not None and self.search.prunes and self.best is None:
            raise UsageError(f"--search {self.search} stops trials by a metric: name it with --best, such as --best val_loss.")
        if self.engines_per_trial < 1:
            raise UsageError(f"--engines-per-trial {self.engines_per_trial}: a trial needs at least one engine; give a number from 1 up.")
        if self.engines_per_trial > 1 and not self.vary:
            raise UsageError(
                f"--engines-per-trial {self.engines_per_trial} sets the number of engines per trial of --vary: omit it, or use --engines."
            )
        for option, given in (("--detach", self.detach), ("--elastic", self.elastic), ("--mesh", self.mesh), ("--preview", self.preview)):
            if self.vary and given:
                raise UsageError(f"--vary and {option} cannot be combined yet: omit one of them.")
        if self.vary and self.cluster.num_engines is not None and self.engines_per_trial > self.cluster.num_engines:
            raise UsageError(
                f"--engines-per-trial {self.engines_per_trial} exceeds the number of engines, {self.cluster.num_engines}. "
                f"Use {self.cluster.num_engines} or fewer."
            )
