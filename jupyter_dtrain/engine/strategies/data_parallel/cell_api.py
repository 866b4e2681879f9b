"""The functions of :mod:`jupyter_dtrain.api` for a cell, on one of several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...comm.collectives import all_gather_object
from ...comm.process_group import shared_memory
from ...telemetry.observer import Observer
from ...tensor.rank0_guard import Alone, all_ranks_come
from ...timing import COMMUNICATION, Counted


class CellApi:
    """The functions on one rank.

    Parameters
    ----------
    rank, world_size : int
    alone : Alone
        Told that the cell has asked whether this is rank 0: what it does in such a branch, the other ranks do not.
    observer : Observer
    """

    def __init__(self, *, rank: int, world_size: int, alone: Alone, observer: Observer) -> None:
        self.rank, self.world_size = rank, world_size
        self._alone, self._observer = alone, observer

    def is_main(self) -> bool:
        """Return whether this is rank 0."""
        if self.rank == 0 and self.world_size > 1:
            self._alone.asked()
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's `value` in rank order. A collective."""
        if self.world_size == 1:
            return [value]
        all_ranks_come()
        with Counted(COMMUNICATION):
            return all_gather_object(value, shared_memory())

    def log(self, values: Mapping[str, float]) -> None:
        """Record values at the current step."""
        self._observer.log(values)

    def config(self, values: Mapping[str, Any]) -> None:
        """Record hyperparameters of the run."""
        self._observer.hyperparameters.config(values)
