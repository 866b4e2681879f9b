"""Subclasses of PyTorch's DataLoader with their own iteration: torchdata's ``StatefulDataLoader``.

Its iterator uses the loader's attributes as PyTorch's does, and reports its position in ``state_dict()``. Therefore the loader itself loads
full batches on each rank, which are then cut. A run that resumes within an epoch makes it load the earlier batches again.
Other classes that override ``__iter__`` are treated as plain iterables: see :mod:`..resume.loop_iterators`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

_MODULE = "torchdata.stateful_dataloader.stateful_dataloader"
_ATTRIBUTES = ("next_iter_state", "_initial_iter_for_state_dict")  # determine how the next iteration begins
_iterate = DataLoader.__iter__
_originals: dict[type, Callable[[Any], Any]] = {}


def followed() -> Iterator[tuple[type, Callable[[Any], Any]]]:
    """Yield the imported classes of such loaders, each with its own ``__iter__``."""
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
    """Return whether `loader` is an instance of such a class."""
    return type(loader) is not DataLoader and any(kind in _originals for kind in type(loader).__mro__)


def its_own(loader: DataLoader[Any]) -> Callable[[Any], Any]:
    """Return the original ``__iter__`` of `loader`, which may be patched during a run."""
    return next((_originals[kind] for kind in type(loader).__mro__ if kind in _originals), _iterate)


def beginning(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the attributes that determine how the next iteration over `loader` begins, besides samplers and random streams."""
    return {name: vars(loader)[name] for name in _ATTRIBUTES if name in vars(loader)}
