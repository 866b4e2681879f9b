"""What the user is told where a cell cannot be sharded, or not all of it: each line names the place in the cell."""

from __future__ import annotations

from ...task import Semantics
from ...telemetry.not_shared import NOT_FORESEEN, advice
from ...telemetry.notices import Notices


class Hints:
    """Lines below the cell, each said once.

    Parameters
    ----------
    notes : Notices
    semantics : Semantics
    """

    def __init__(self, notes: Notices, semantics: Semantics) -> None:
        self._notes, self._semantics = notes, semantics

    def say(self, text: str) -> None:
        """Say `text`, and where in the cell."""
        self._notes.say(text + self._notes.location())

    def no_rule(self, name: str) -> None:
        """Say that an operation is computed on the global batch."""
        self._notes.say(f"`{name}`{self._notes.location()} has no sharding rule: each engine computes it on the global batch.")

    def takes_batch_for_sequence(self, layer: str) -> None:
        """Say that a layer has the batch where a sequence is expected."""
        self._notes.say(
            f"The `{layer}`{self._notes.location()} takes the batch for a sequence (`batch_first=True` would take each sample for one): "
            "each engine computes it on the whole batch."
        )

    def draws_apart(self) -> None:
        """Say that ranks have not drawn alike."""
        self._notes.say(
            "The random numbers of a model differed between ranks, so each rank uses its own stream from now on (as with `--rng per-rank`)."
        )

    def draws_unknown(self, model: str) -> None:
        """Say that a model draws in a way that cannot be divided among the samples."""
        self._notes.say(
            f"What `{model}`{self._notes.location()} draws at random cannot be divided by samples: each engine computes what draws on the "
            "whole batch. `--rng per-rank` lets each draw for its own share."
        )

    def not_split(self, kind: str) -> None:
        """Say what in the batches of a loader keeps them whole."""
        self._notes.say(f"The batches{self._notes.location()} hold a {kind} and are not split: each engine computes on all of each batch.")

    def not_sharded(self, *, drew: bool, has_model: bool, has_trained: bool) -> None:
        """Say that all engines have computed the same, and what changes that."""
        self._notes.say(advice(self._semantics, drew=drew, has_model=has_model, has_trained=has_trained))

    def not_foreseen(self) -> None:
        """Say that a cell has drawn batches that was given one engine because it seemed to draw none."""
        self._notes.say(NOT_FORESEEN)
