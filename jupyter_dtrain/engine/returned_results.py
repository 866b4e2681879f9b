"""A rank's results on their way to the notebook: gathered from the ranks, and packed with the state of the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..capture.process_state import ProcessSettings
from ..capture.random_state import RandomState
from ..transport.base import BlobStore
from ..transport.parcel import to_parcel
from .arrival.objects import DeviceNames
from .cell import Failure
from .cell_results import CellResults
from .staging import bytes_of_state
from .strategies.base import LIMIT_OF_RESCUE, Strategy
from .task import Outcome
from .telemetry.notices import at_end


class ReturnedResults:
    """Packs the results of a cell.

    Parameters
    ----------
    strategy : Strategy
    device : torch.device
        The rank's device.
    blobs : BlobStore
        Store for large buffers.
    tracked : list of object
        Objects from the notebook.
    devices : DeviceNames
    before : ProcessSettings
        Settings at the cell's start.

    Attributes
    ----------
    of_cell : CellResults
    skip : dict of str to object
        Values of names that the cell has not made, which a rescue does not return.
    """

    def __init__(
        self,
        strategy: Strategy,
        device: torch.device,
        *,
        blobs: BlobStore,
        tracked: list[object],
        devices: DeviceNames,
        before: ProcessSettings,
    ) -> None:
        context = strategy.context
        self._strategy, self._device, self._blobs, self._devices, self._before = strategy, device, blobs, devices, before
        self._rank, self._observer, self._namespace = context.task.rank, context.reports.observer, context.namespace
        self.of_cell = CellResults(self._namespace, tracked, at_home=context.task.imported)
        self.skip: dict[str, object] = {}

    def objects(self) -> list[object]:
        """Return the objects from the notebook, and the values of the cell's names."""
        return self.of_cell.objects()

    def rescued(self, failure: Failure) -> Outcome:
        """Return an outcome with the cell's results so far. Called on another thread."""
        step = self._observer.step
        missing = not self._strategy.collect(step, LIMIT_OF_RESCUE)
        outcome = Outcome(rank=self._rank, failure=failure, stopped=False, steps=step, states_missing=missing)
        return self.packed_with(outcome, skip=self.skip)

    def num_bytes(self) -> int:
        """Return the estimated size of the results in bytes. Called on another thread."""
        with self._strategy.as_it_is():
            return bytes_of_state(self.of_cell.objects())

    @at_end
    def settled(self, value: Any) -> Any:
        """Gather tensors that span the ranks in the cell's value, names and changed objects; return the value. A collective."""
        changed, unchanged = self.of_cell.changed_and_not()
        value, *_ = self._strategy.materialize(value, self._namespace, *changed, unchanged=unchanged)
        return value

    def packed_with(self, outcome: Outcome, value: object = None, *, skip: Mapping[str, object] | None = None) -> Outcome:
        """Return `outcome` with the results to send home, except the values in `skip`."""
        with self._strategy.as_it_is():
            packed, not_returned = self.of_cell.pack(value, skip=skip or {})
        after = ProcessSettings.now()
        return replace(
            outcome,
            parcel=to_parcel(packed, self._blobs),
            not_returned=not_returned,
            random_state=RandomState.now(),
            surroundings=after.changed_from(self._before) if after != self._before else None,
            device=self._device.type,
            from_cpu=self._devices.from_cpu,
        )
