"""Register strategies by name: what the kernel has to know of each, and which class engines import for it.

A strategy describes itself in a :class:`StrategyInfo`, which does not import torch, as the kernel reads it before any engine starts. Its
implementation is a class (:class:`~.engine.strategies.base.Strategy`), which the description names and only engines import.

Another package provides a strategy by an entry point of the group `ENTRY_POINTS`, with the strategy's name, for its description. Entry
points are searched only for unknown names, as this reads all installed packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module

from .errors import UsageError
from .system.entry_points import installed, load

DEFAULT = "auto"
ENTRY_POINTS = "jupyter_dtrain.strategies"
_OWN = ("data_parallel", "zero1", "zero3", "pipeline", "tensor_parallel", "external")
"""Folders of `engine/strategies`, in the order of the help."""


class Feature(Enum):
    """What an option or a command requires of a strategy, phrased for messages: ``--best needs checkpoints …``."""

    SHARDING = "batches that are sharded over the engines"
    RNG = "random numbers that are drawn for the whole batch or for each shard"
    BATCHNORM = "statistics over the whole batch or over each shard"
    ACTIVATION_CHECKPOINTS = "models whose calls are followed"
    VERIFY = "calls on shards, to compare with those on the whole batch"
    BALANCE = "shards whose sizes can follow the engines' speeds"
    ELASTIC = "batches that can be sharded over another number of engines"
    HYBRID = "groups of engines beside each other that each have all of a model"
    COMPRESSION = "gradients that engines exchange whole"
    LOCAL_STEPS = "steps of each engine by itself"
    NAMED_SHARDS = "parameters that are divided by name"
    SNAPSHOT = "snapshots of the cell"
    BEST = "snapshots of the cell, to keep the best of"
    ROLLBACK = "snapshots of the cell, to go back to"
    PAUSE = "steps at whose end all engines wait"
    HOSTS = "exchanges between engines of several hosts"


EVERYDAY = frozenset(Feature) - {Feature.LOCAL_STEPS, Feature.NAMED_SHARDS, Feature.HOSTS}
"""Features of a strategy that does not list its own."""

NEEDS = {
    "split": Feature.SHARDING,
    "split_inputs": Feature.SHARDING,
    "batch_size": Feature.SHARDING,
    "split_eval": Feature.SHARDING,
    "semantics": Feature.SHARDING,
    "rng": Feature.RNG,
    "batchnorm": Feature.BATCHNORM,
    "checkpoint_activations": Feature.ACTIVATION_CHECKPOINTS,
    "balance": Feature.BALANCE,
    "compress": Feature.COMPRESSION,
    "sync_every": Feature.LOCAL_STEPS,
    "verify": Feature.VERIFY,
    "shard": Feature.NAMED_SHARDS,
    "elastic": Feature.ELASTIC,
    "best": Feature.BEST,
    "checkpoint_every": Feature.SNAPSHOT,
    "keep_checkpoints": Feature.SNAPSHOT,
    "keep_secrets": Feature.SNAPSHOT,
}
"""The feature that an option requires of the strategy, by the option's name in `RunOptions`."""


class Divided(Enum):
    """What a strategy shards over the engines, so that each holds only its part."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"


@dataclass(frozen=True, kw_only=True)
class StrategyInfo:
    """The description of a strategy.

    Attributes
    ----------
    name : str
        The value of ``--strategy``.
    summary : str
        What it does, as the rest of a sentence that begins with its name: for ``--help``, completion and hints.
    implementation : str
        The class that engines import, as ``package.module:Class``.
    supports : frozenset of Feature
        Supported features. Options and commands that require others are refused.
    axis : str, optional
        The axis of ``--mesh`` along which it divides the work; ``None`` if the cell handles its ranks itself.
    divides : frozenset of Divided
        What it shards, by which ``%distribute plan`` predicts memory.
    by_blocks : bool
        Whether shards consist of complete blocks of a model, so that their sizes differ; otherwise all are equally large.
    divides_on : frozenset of str
        Device types on which it shards; on others each engine holds everything.
    known_as : tuple of str
        Names of the same or a similar strategy in other projects: a user who types one is pointed to this strategy.
    counts_steps : bool
        Whether a stop takes effect at the end of a step; otherwise it is an interrupt, as steps are unknown.
    can_continue : bool
        Whether a cell that has lost an engine continues, from a snapshot or from its start.
    outlives_controller : bool
        Whether the cell continues after the controller has ended; then its results are in a file as well.
    owns_process_group : bool
        Whether the cell creates its process group itself. The ranks then meet at a new port for each cell, and engines are replaced after
        it, as libraries keep state about the ranks.
    """

    name: str
    summary: str
    implementation: str
    supports: frozenset[Feature] = EVERYDAY
    axis: str | None = "dp"
    divides: frozenset[Divided] = frozenset()
    by_blocks: bool = False
    divides_on: frozenset[str] = frozenset({"cpu", "cuda"})
    known_as: tuple[str, ...] = ()
    counts_steps: bool = True
    can_continue: bool = True
    outlives_controller: bool = False
    owns_process_group: bool = False

    def require(self, feature: Feature, what: str, *, advice: str = "") -> None:
        """Raise a `UsageError` for `what`, an option or a command, if the strategy does not support the `feature` that it requires."""
        if feature not in self.supports:
            raise UsageError(f"{what} needs {feature.value}, which --strategy {self.name} does not have{advice}.")


def is_default(name: str) -> bool:
    """Return whether this is the ``--strategy`` of a cell that names none, ``auto``."""
    return name == DEFAULT


_known: dict[str, StrategyInfo] = {}


def register(info: StrategyInfo) -> None:
    """Register a strategy in this process; engines must be able to import its implementation.

    Raises
    ------
    ValueError
        Another strategy has this name.
    """
    if _known.setdefault(info.name, info) != info:
        raise ValueError(f"There is a strategy {info.name!r} already, {_known[info.name].implementation}.")


def find(name: str) -> StrategyInfo:
    """Return the strategy with this `name` for ``--strategy``.

    Raises
    ------
    UsageError
        There is none; the message lists the others, and suggests one if `name` is known from another project.
    """
    _register_own()
    if name not in _known:
        _register_installed([name])
    if name not in _known:
        known = available()
        meant = next((f" {info.name} {info.summary}." for info in known if name in info.known_as), "")
        raise UsageError(f"--strategy {name}: choose {' or '.join(info.name for info in known)}.{meant}")
    return _known[name]


def available() -> list[StrategyInfo]:
    """Return all strategies: this project's own and those of installed packages. Takes some 50 ms the first time."""
    own = _register_own()
    _register_installed(None)
    return [*own, *(info for info in _known.values() if info not in own)]


def _register_own() -> list[StrategyInfo]:
    """Return this project's own strategies in the order of the help, which may differ from the order of registration."""
    return [import_module(f"{__package__}.engine.strategies.{folder}").INFO for folder in _OWN]  # each registers itself


def _register_installed(names: Iterable[str] | None) -> None:
    """Register usable strategies of installed packages; with `names`, only these, which must be usable."""
    for name, point in installed(ENTRY_POINTS).items():
        if name in _known or (names is not None and name not in names):
            continue
        try:
            info = load(point, StrategyInfo, what=f"--strategy {name}", check=_misnamed(name))
        except UsageError:
            if names is not None:
                raise
        else:
            register(info)


def _misnamed(name: str) -> Callable[[StrategyInfo], str | None]:
    return lambda info: None if info.name == name else f"is named {info.name!r}, and its entry point {name!r}"
