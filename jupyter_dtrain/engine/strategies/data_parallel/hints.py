"""Notes to the user about parts of a cell that cannot be sharded. Each names the place in the cell."""

from __future__ import annotations

from ...task import Semantics
from ...telemetry.not_shared import NOT_FORESEEN, advice
from ...telemetry.notices import Notices


class Hints:
    """Notes below the cell, each shown once.

    Parameters
    ----------
    notes : Notices
    semantics : Semantics
    """

    def __init__(self, notes: Notices, semantics: Semantics) -> None:
        self._notes, self._semantics = notes, semantics

    def say(self, text: str) -> None:
        """Show `text`, with the place in the cell."""
        self._notes.say(text + self._notes.location())

    def no_rule(self, name: str) -> None:
        """Note that an operation is computed on the global batch."""
        self._notes.say(f"`{name}`{self._notes.location()} has no sharding rule: each engine computes it on the global batch.")

    def takes_batch_for_sequence(self, layer: str) -> None:
        """Note that a layer takes the batch dim for its sequence dim."""
        self._notes.say(
            f"The `{layer}`{self._notes.location()} treats the batch as a sequence (with `batch_first=True` it treats each sample as one): "
            "each engine computes it on the whole batch."
        )

    def draws_apart(self) -> None:
        """Note that ranks have drawn different random numbers."""
        self._notes.say(
            "The random numbers of a model differed between ranks, so each rank uses its own stream from now on (as with `--rng per-rank`)."
        )

    def draws_unknown(self, model: str) -> None:
        """Note that random numbers of a model cannot be assigned to samples."""
        self._notes.say(
            f"What `{model}`{self._notes.location()} draws at random cannot be divided by samples: each engine runs the drawing "
            "module on the whole batch. `--rng per-rank` lets each draw for its own share."
        )

    def not_split(self, kind: str) -> None:
        """Note why the batches of a loader are not sharded."""
        self._notes.say(
            f"The batches{self._notes.location()} hold a {kind} and are not sharded: each engine computes on all of each batch."
        )

    def not_sharded(self, *, drew: bool, has_model: bool, has_trained: bool) -> None:
        """Note that all engines have computed the same, and how to shard."""
        self._notes.say(advice(self._semantics, drew=drew, has_model=has_model, has_trained=has_trained))

    def not_foreseen(self) -> None:
        """Note that a cell that was given one engine, as it seemed to use no loader, has used one."""
        self._notes.say(NOT_FORESEEN)
