"""Loaders that are made from PyTorch's and iterate by themselves: torchdata's ``StatefulDataLoader``.

Its iterator goes by the loader's attributes as PyTorch's does, and says in ``state_dict()`` where it is. So it is the loader's own that
loads, whole batches on each rank, which cut them; and a run that goes on in the midst of an epoch has it load the batches before once more.
Other classes that override ``__iter__`` are iterables as any other: see :mod:`..resume.loop_iterators`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

_MODULE = "torchdata.stateful_dataloader.stateful_dataloader"
_ATTRIBUTES = ("next_iter_state", "_initial_iter_for_state_dict")  # that decide on how the next iteration begins
_iterate = DataLoader.__iter__
_originals: dict[type, Callable[[Any], Any]] = {}


def followed() -> Iterator[tuple[type, Callable[[Any], Any]]]:
    """Yield the classes of such loaders that are there, each with its own ``__iter__``."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        kind: Any = module.StatefulDataLoader
        yield kind, _originals.setdefault(kind, kind.__iter__)


def iterators() -> Iterator[type]:
    """Yield the classes of their iterators that have workers."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        yield module._StatefulMultiProcessingDataLoaderIter


def iterates_itself(loader: DataLoader[Any]) -> bool:
    """Return whether `loader` is one of these."""
    return type(loader) is not DataLoader and any(kind in _originals for kind in type(loader).__mro__)


def its_own(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    """Return the ``__iter__`` that makes the iterator of `loader`, whatever takes its place during a run."""
    return next((_originals[kind] for kind in type(loader).__mro__ if kind in _originals), _iterate)


def beginning(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what decides on how the next iteration over `loader` begins, beside its samplers and random streams."""
    return {name: vars(loader)[name] for name in _ATTRIBUTES if name in vars(loader)}
