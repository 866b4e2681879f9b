"""The interface of strategies to steps: by default engines exchange gradients in each step, and have the same parameters after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class EveryStep:
    """Every step uses the gradient of the global batch.

    Attributes
    ----------
    is_replicated : bool
        Whether all ranks have the same parameters, gradients and optimizer states in a snapshot.
    """

    is_replicated = True

    @property
    def is_ahead(self) -> bool:
        """Whether this rank has parameters that differ from those of other ranks."""
        return False

    def installed(self) -> AbstractContextManager[None]:
        """Follow the cell until the end of the ``with`` block, inside the training's own block."""
        return nullcontext()

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread access this rank's tensors without a collective, until the end of the ``with`` block."""
        return nullcontext()

    def finish(self) -> None:
        """Make the state of all ranks equal at the cell's end. Collective."""

    def give_up(self) -> None:
        """Stop following the cell if another thread returns its results."""

    def adopt(self, objects: Sequence[object]) -> None:
        """Follow `objects` too, which were read from a snapshot."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resuming from here."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
