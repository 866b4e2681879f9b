"""Persistent workers of a loader belong to a process. What they have drawn when they started is sent, so that others draw nothing again."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

WORKERS = "_dtrain_workers"
"""Attribute of a loader: state of its workers in another process (`engine.data.worker_states.WorkerStates`), or only their seed."""


def set_loader(loader: DataLoader[Any], state: dict[str, Any]) -> None:
    """Set the attributes of a loader that was sent."""
    vars(loader).update(state)
    take_over_workers(loader)


def take_over_workers(loader: DataLoader[Any]) -> None:
    """Let the workers of `loader` start as those of the other process were, unless its own still run."""
    own = vars(loader)
    if isinstance(own.get("_iterator"), _MultiProcessingDataLoaderIter):
        own.pop(WORKERS, None)
    elif hasattr(own.get(WORKERS), "_reset"):
        own["_iterator"] = own[WORKERS]  # `iter(loader)` calls its `_reset`, which starts the workers


def with_seed(loader: DataLoader[Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a loader as they are sent: with the seed of its workers if they run here."""
    iterator = vars(loader).get("_iterator")
    return {WORKERS: iterator._base_seed, **state} if isinstance(iterator, _MultiProcessingDataLoaderIter) else state
