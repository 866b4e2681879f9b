"""What others fill to take part in calls of models: a strategy, and who verifies. `ModelCalls` calls these where there are some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import nn

from .known_models import ModuleInfo
from .sharded_call import ShardedCall


class Checks(Protocol):
    """Who compares calls on a part of a batch with those on all of it."""

    def is_due(self, module: nn.Module, given: tuple[Any, dict[str, Any]]) -> bool:
        """Count a call of `module`; return whether it is to be checked."""

    def call(
        self, seen: Callable[[], Any], alone: Callable[[Any], Any], module: nn.Module, called: ModuleInfo, given: tuple[Any, dict[str, Any]]
    ) -> Any:
        """Make a call by `seen` and check it; `alone` makes it as one process does."""


class ShardedParameters(Protocol):
    """Has parameters of which each rank has a part, and fetches them where they are used.

    This is what a strategy fills, and `ModelCalls` calls where one has.
    """

    def adopt(self, module: nn.Module) -> None:
        """Shard those of a model. Collective."""

    def before_call(self, module: nn.Module) -> None:
        """Let all ranks know what the cell has written to them, as it calls a model. Collective."""

    def calling(self) -> AbstractContextManager[None]:
        """Let a model be called by the cell, until the end of the ``with`` block."""

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module in a model."""

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return what makes a later call of a model on the rank's part: its `own_call`, or what comes to the same with other ranks."""

    def on_full_batch(self, module: nn.Module) -> None:
        """Be told that a model is called whose ``forward`` is to see all of a batch."""
