"""The seam to strategies' steps: by default engines exchange gradients in each, and so have the same parameters after it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class EveryStep:
    """Every step is one with the gradient of the global batch.

    Attributes
    ----------
    is_replicated : bool
        Whether all ranks have the same parameters, gradients and optimizer states in a snapshot.
    """

    is_replicated = True

    @property
    def is_ahead(self) -> bool:
        """Whether this rank has parameters that others have not."""
        return False

    def installed(self) -> AbstractContextManager[None]:
        """Take part in what the cell does, until the end of the ``with`` block, within that of the training."""
        return nullcontext()

    def as_it_is(self) -> AbstractContextManager[None]:
        """Let this thread see what this rank has, without a collective, until the end of the ``with`` block."""
        return nullcontext()

    def finish(self) -> None:
        """Let all ranks have the same at the cell's end. Collective."""

    def give_up(self) -> None:
        """Take part no more, where another thread takes home what the cell has made."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on from here has to know."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
