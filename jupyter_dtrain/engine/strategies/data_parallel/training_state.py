"""The state of data parallel training in a snapshot, and how it is restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...forward.model_call import ModelCalls
from ...rng.seeding import CommonEntropy
from ...rng.streams import LoadingStream, ModelStream
from ...tensor.batch_shard import BatchSharding
from ...tensor.view import GlobalView


class TrainingState:
    """The state of the parts that :class:`.DataParallelTraining` connects."""

    shares: BatchSharding
    _world_size: int
    _models: ModelCalls
    _view: GlobalView | None
    _entropy: CommonEntropy
    _model_stream: ModelStream | None
    _loading_stream: LoadingStream | None

    @property
    def in_step(self) -> bool:
        """Whether the cell is between a forward and a backward pass: an autograd graph cannot be saved."""
        return self._models.graph_open

    def wholes(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the full tensors of global ones. Collective."""
        return list(tensors) if self._view is None else [self._view.full_tensor(tensor) for tensor in tensors]

    def materialize(self, *values: Any, unchanged: Iterable[object] = (), **options: Any) -> list[Any]:
        """Return `values` with full tensors for global ones; all ranks call it with the same values.

        Objects in `unchanged` hold nothing new and are not looked through. `options` are those of :meth:`.GlobalView.materialize`.
        """
        return list(values) if self._view is None else self._view.materialize(values, unchanged=unchanged, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to know of the cell's objects to resume from here."""
        return {
            "models": self._models.parts.state_dict(),
            "speeds": self.shares.speeds,
            "entropy": self._entropy.state_dict(),
            "view": self._view.state_dict() if self._view is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self._models.parts.load_state_dict(state["models"])
        self._entropy.load_state_dict(state.get("entropy", {}))
        if self._view is not None and state.get("view") is not None:
            self._view.load_state_dict(state["view"])
        if len(state["speeds"]) == self._world_size:  # on as many ranks as before
            self.shares.follow(state["speeds"])

    def streams(self) -> tuple[Any, Any] | None:
        """Return the state of the rank's own random streams."""
        if self._model_stream is None or self._loading_stream is None:
            return None
        return self._model_stream.other, self._loading_stream.state_dict()

    def set_streams(self, states: tuple[Any, Any] | None) -> None:
        """Resume from `states`."""
        if states is not None and self._model_stream is not None and self._loading_stream is not None:
            self._model_stream.other = states[0]
            self._loading_stream.load_state_dict(states[1])
