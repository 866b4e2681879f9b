"""How a cell is distributed, by name: what the kernel has to know of each strategy, and where engines find what it does there.

A strategy describes itself in a :class:`StrategyInfo`, which costs no import of torch: the kernel reads it before any engine is there. What
it does on an engine is a class (:class:`~.engine.strategies.base.Strategy`), which the description names and engines alone import.

A package from outside brings its own by an entry point of the group `ENTRY_POINTS`, named as the option's value is, whose object is the
description. Entry points are looked at only for a name that is not known without them, as all installed packages are read for that.
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
    """What an option or a command needs of a strategy, as a sentence has it: ``--best needs checkpoints …``."""

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
"""What strategies support that say nothing about it."""

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
"""What an option needs of the strategy, where it is given, by its name in `RunOptions`."""


class Divided(Enum):
    """What a strategy divides over the engines, so that each has a part of it alone."""

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
        An option or a command that needs anything else is refused.
    axis : str, optional
        The axis of ``--mesh`` along which it shares the work; ``None``: the cell knows of its ranks by itself.
    divides : frozenset of Divided
        What each engine has a part of alone; ``%distribute plan`` predicts by it.
    by_blocks : bool
        Whether each part is of whole blocks of a model, so that engines have more or less of it; otherwise each has as much as the others.
    divides_on : frozenset of str
        Kinds of devices on which it does; on others each engine has all of it.
    known_as : tuple of str
        What other projects call it, or something near it: who types that is told of this one.
    counts_steps : bool
        Whether a stop takes effect at the end of a step; otherwise it is an interrupt, as nobody knows of steps.
    can_continue : bool
        Whether a cell that has lost an engine goes on, from a snapshot or from its beginning.
    outlives_controller : bool
        Whether the cell goes on when the controller has ended; then what it comes to lies in a file as well.
    owns_process_group : bool
        Whether the cell makes its process group by itself. The ranks meet at a port that is new for each cell, and engines are new ones
        after it, as libraries keep what they know of the ranks.
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
        """Refuse `what`, an option or a command, with a `UsageError` where the strategy does not support what it needs."""
        if feature not in self.supports:
            raise UsageError(f"{what} needs {feature.value}, which --strategy {self.name} does not have{advice}.")


_known: dict[str, StrategyInfo] = {}


def register(info: StrategyInfo) -> None:
    """Let ``--strategy`` know of a strategy, in this process; engines have to be able to import its implementation.

    Raises
    ------
    ValueError
        Another one has its name.
    """
    if _known.setdefault(info.name, info) != info:
        raise ValueError(f"There is a strategy {info.name!r} already, {_known[info.name].implementation}.")


def find(name: str) -> StrategyInfo:
    """Return the strategy that ``--strategy`` calls `name`.

    Raises
    ------
    UsageError
        There is none; the message has the others, and which of them is meant, where that can be told.
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
    """Return this project's own, in the order of the help: one may have been imported, and so registered, before the others."""
    return [import_module(f"{__package__}.engine.strategies.{folder}").INFO for folder in _OWN]  # each registers itself


def _register_installed(names: Iterable[str] | None) -> None:
    """Register the strategies of installed packages: all that can be used, or those with `names`, which are to be."""
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
