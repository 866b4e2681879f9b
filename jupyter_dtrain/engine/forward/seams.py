"""Protocols that strategies and verification implement to take part in calls of models; `ModelCalls` calls them if present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from .known_models import ModuleInfo
from .sharded_call import ShardedCall


class Checks(Protocol):
    """Compares calls on a share of the batch with calls on the full batch."""

    def is_due(self, module: nn.Module, given: tuple[Any, dict[str, Any]]) -> bool:
        """Count a call of `module`; return whether it is due for a check."""

    def call(
        self, seen: Callable[[], Any], alone: Callable[[Any], Any], module: nn.Module, called: ModuleInfo, given: tuple[Any, dict[str, Any]]
    ) -> Any:
        """Make the call by `seen` and check it; `alone` makes the call as a single process would."""


class ShardedParameters(Protocol):
    """Holds parameters that are sharded over ranks, and fetches them when they are used. A strategy implements this.

    Attributes
    ----------
    check_replicas : callable
        Raises an error if parameters differ between ranks. Called with those that are about to be sharded; the training sets it.
    """

    check_replicas: Callable[[Sequence[torch.Tensor]], None]

    def adopt(self, module: nn.Module) -> None:
        """Shard the parameters of `module`. Collective."""

    def before_call(self, module: nn.Module) -> None:
        """Share the cell's writes to parameters of `module` with all ranks, before the cell calls it. Collective."""

    def calling(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return the context within which the cell calls a model."""

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module within a model."""

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return the callable for a later call on the rank's share: its `own_call`, or an equivalent computation with other ranks."""

    def on_full_batch(self, module: nn.Module) -> None:
        """Handle the call of an open model, whose ``forward`` sees the full batch."""
