"""Functions that a cell may call; none of them is needed to train.

On an engine they use the run. In a plain cell there is one process, and each does the obvious: the mean of one value is the value. So a
cell that uses them still runs when its first line is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Run(Protocol):
    """The run of a cell, as one rank sees it."""

    rank: int
    world_size: int

    def is_main(self) -> bool:
        """Return whether this is rank 0."""

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value` in rank order. Collective."""

    def log(self, values: Mapping[str, float]) -> None:
        """Record values at the current step."""

    def config(self, values: Mapping[str, Any]) -> None:
        """Record hyperparameters of the run."""


current: Run | None = None
"""The run on this engine; ``None`` in the notebook and between runs."""


def gather(value: Any) -> list[Any]:
    """Return every rank's `value`, in rank order; in a plain cell a list of one.

    For values that differ between ranks: what the cell reads from batches and models is the same on all of them.
    All ranks call it at the same place.
    """
    return [value] if current is None else current.gather(value)


def mean(value: Any) -> Any:
    """Return the mean of the ranks' values; in a plain cell `value`. Numbers, tensors and arrays; see :func:`gather`."""
    values = gather(value)
    return _total(values) / len(values)


def sum(value: Any) -> Any:  # noqa: A001  # dtrain.sum
    """Return the sum of the ranks' values; in a plain cell `value`. Numbers, tensors and arrays; see :func:`gather`."""
    return _total(gather(value))


def _total(values: list[Any]) -> Any:
    total, *rest = values
    for value in rest:
        total = total + value
    return total


def is_main() -> bool:
    """Return whether this is rank 0, or a plain cell: for what is to leave the notebook once, a message that is sent for example.

    Values over a batch are read before the branch: reading them (``loss.item()``) takes all ranks.
    """
    return current is None or current.is_main()


def rank() -> int:
    """Return this rank's number; in a plain cell 0."""
    return 0 if current is None else current.rank


def world_size() -> int:
    """Return the number of ranks; in a plain cell 1."""
    return 1 if current is None else current.world_size


def log(values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Record numbers at the current step, as curves beside the loss; in a plain cell nothing.

    Examples
    --------
    ``dtrain.log(val_accuracy=0.97)`` or ``dtrain.log({"val/accuracy": 0.97})``
    """
    if current is not None:
        current.log({name: float(value) for name, value in {**(values or {}), **named}.items()})


def config(values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Record hyperparameters of the run, beside those that it records by itself; in a plain cell nothing.

    Optimizers, schedulers, models, the batch size and the seed need no such call. A name that is given again has its last value.

    Examples
    --------
    ``dtrain.config(dataset="v2", warmup=500)`` or ``dtrain.config({"data/version": 2})``
    """
    if current is not None:
        current.config({**(values or {}), **named})
