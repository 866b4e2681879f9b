"""The training steps that the cell makes on a rank: batches and backward passes, and who is told of them."""

from __future__ import annotations

import torch

from ...backward.gradient_sync import GradientSync
from ...control import Control
from ...forward.model_call import ModelCalls
from ...task import Semantics
from ...telemetry.observer import Observer
from ...tensor.batch_shard import BatchShard
from ...tensor.placement_types import GlobalTensor, Partial, to_local
from ...tensor.redistribute import Exchange
from ...tensor.view import GlobalView
from ...timing import COMMUNICATION, Timing
from .hints import Hints


class CellSteps:
    """Observes batches and backward passes.

    Parameters
    ----------
    world_size : int
    semantics : Semantics
    control : Control
        Where the rank may be told to stop: between two steps.
    observer : Observer
    timing : Timing
    hints : Hints
    """

    _view: GlobalView | None
    _gradients: GradientSync | None
    _models: ModelCalls

    def __init__(
        self, world_size: int, semantics: Semantics, *, control: Control, observer: Observer, timing: Timing, hints: Hints
    ) -> None:
        self._world_size, self._semantics = world_size, semantics
        self._control, self._observer, self._timing, self._hints = control, observer, timing, hints
        self._share: BatchShard | None = None  # of the batch that the cell drew last
        self._drew = False  # from a loader that marks the steps
        self._shared_out = False  # anything at all
        self._drew_whole = False  # from a loader whose batches are not split
        self._said_why = False  # nothing is shared out
        self._has_trained = False  # with a model in training mode
        self._apart = False  # ranks may have something that others have not

    @property
    def models(self) -> ModelCalls:
        """The part that handles calls of models."""
        return self._models

    def say(self, text: str) -> None:
        """Show the user a note, with the place in the cell."""
        self._hints.say(text)

    def _on_batch(self, share: BatchShard | None, batch: int, batches: int | None) -> None:
        self._control.boundary(self._observer.step)
        self._share, self._drew = share, True
        self._shared_out |= share is not None
        self._observer.on_batch(self._counted(share), batch, batches)

    def _counted(self, share: BatchShard | None) -> BatchShard | None:
        """Return the shard whose samples this rank reports."""
        return share

    def _on_other_batch(self, share: BatchShard | None) -> None:
        self._control.boundary(self._observer.step)
        self._shared_out |= share is not None
        self._drew_whole |= share is None

    def _on_input_shared(self) -> None:
        self._shared_out = True

    def _on_backward(self, root: torch.Tensor) -> None:
        self._models.graph_open = False
        self._has_trained = self._has_trained or self._models.known.any_training()
        if isinstance(root, GlobalTensor) and isinstance(root.placement, Partial) and root.placement.weight is None:
            # A sum over the ranks, and what they report is averaged.
            self._observer.on_backward(to_local(root).detach() * self._world_size, 1.0 / self._world_size)
        else:
            self._observer.on_backward(root, self._weight_of(root))
        if not self._drew:  # no loader marks the steps
            self._control.boundary(self._observer.step)

    def _is_alike(self, root: torch.Tensor) -> bool:
        """Return whether all ranks have computed `root` from equal values. Collective, while that is possible.

        Elsewhere than on CPUs they do not stay the same: sums come in another order each time.
        """
        if self._apart or self._shared_out or self._view is None or self._view.has_parts or root.device.type != "cpu":
            return False
        self._apart = not Exchange.is_same(root)
        return not self._apart

    def _on_computed(self) -> None:
        self._timing.switch(COMMUNICATION)

    def _weight_of(self, root: torch.Tensor) -> float:
        if self._view is not None:
            return self._view.weight_of(root)
        return 1.0 / self._world_size if self._share is None else self._share.weight

    def check_replicas(self) -> None:
        """Raise if the cell leaves the ranks with other weights each. Collective."""
        if self._gradients is not None:
            self._gradients.replicas.at_end()

    def say_if_not_sharded(self) -> None:
        """Note that all engines have computed the same, and how to shard. Call it only where no error is shown after it."""
        if self._gradients is not None and self._observer.step and not self._shared_out and not self._said_why:
            self._hints.not_sharded(drew=self._drew_whole, has_model=self._models.known.has_any(), has_trained=self._has_trained)
        if self._semantics.one_engine and self._world_size == 1 and (self._drew or self._drew_whole):
            self._hints.not_foreseen()

    def _on_unknown(self, kind: str) -> None:
        self._apart = self._said_why = True  # each rank has loaded its own
        self._hints.not_split(kind)
