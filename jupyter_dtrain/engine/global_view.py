"""The two sides of a batch: global in the cell, the rank's part inside a model.

Where a batch enters the cell it is placed, where it enters a model it is the rank's plain tensor, and what leaves the
model is placed again. Between them `rules` keep account. At the end everything that the cell holds becomes whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .cell import users_line
from .exchange import Exchange
from .placements import GlobalTensor, Partial, Shard, part_of, place
from .rules.dispatch import Rules
from .rules.table import TABLE
from .shares import Share


class GlobalView:
    """The cell's view of what spans the ranks, for the time of one run.

    Parameters
    ----------
    rank, world_size : int
    sizes_of : callable
        Returns all ranks' numbers of samples for a batch of a given size, in rank order.
    on_whole : callable
        Told the name of an operation that was computed on whole tensors for want of a rule.
    """

    def __init__(self, *, rank: int, world_size: int, sizes_of: Callable[[int], tuple[int, ...]], on_whole: Callable[[str], None]) -> None:
        self._world_size = world_size
        self._exchange = Exchange(sizes_of=sizes_of)
        self._rules = Rules(TABLE, self._exchange, rank, world_size, on_whole, self._on_read)
        self._read_sites: set[tuple[str, int]] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let operations on global tensors follow this view's rules."""
        with mock.patch.object(GlobalTensor, "dispatch", staticmethod(self._rules.dispatch), create=True):
            yield

    # -- at the door of a model -------------------------------------------------------------------------------------

    def enter(self, values: Any) -> tuple[Any, Shard | None]:
        """Return a model's arguments as the rank's own, and the placement of the first one that spans the ranks."""
        found: list[Shard] = []

        def convert(value: Any) -> Any:
            if not isinstance(value, GlobalTensor):
                return value
            if isinstance(value.placement, Partial):
                return self._rules.whole(value)
            found.append(value.placement)
            return part_of(value)

        converted = pytree.tree_map(convert, values)
        return converted, found[0] if found else None

    def leave(self, values: Any, placement: Shard) -> Any:
        """Return a model's results, of arguments placed as `placement`, with their own placements.

        A result has a row per sample (or per entry of a sequence) where its size says so. A single number is taken
        for a mean over the samples, as models that compute their loss themselves return it.
        """
        share = placement.share
        loaded = share.loaded.stop - share.loaded.start
        rows = loaded * placement.unit

        def convert(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or isinstance(value, GlobalTensor | nn.Parameter):
                return value
            if value.dim() == 0:
                return place(value, Partial(share.weight)) if value.is_floating_point() else value
            if value.shape[0] == rows:
                return place(value, Shard(0, share, placement.unit))
            if value.shape[0] == loaded:
                return place(value, Shard(0, share))
            if value.dim() > 1 and value.shape[1] == loaded:
                return place(value, Shard(1, share))
            if value.shape[0] % loaded == 0 and value.dim() > 1:
                return place(value, Shard(0, share, value.shape[0] // loaded))
            return value

        return pytree.tree_map(convert, values)

    # -- at the root of a graph --------------------------------------------------------------------------------------

    def weight_of(self, root: torch.Tensor) -> float:
        """Return what a rank's part of `root` counts in the value of the whole."""
        if not isinstance(root, GlobalTensor):
            return 1.0 / self._world_size
        if isinstance(root.placement, Partial) and root.placement.weight is not None:
            return root.placement.weight
        return 1.0 if not isinstance(root.placement, Shard) or root.placement.counts else 0.0

    def before_backward(self, root: torch.Tensor) -> None:
        """Begin to exchange a loss that is going to be read: the exchange runs beside the backward pass.

        What was read after a backward pass at the same line before is read again, on every rank.
        """
        if isinstance(root, GlobalTensor) and isinstance(root.placement, Partial):
            site = users_line()
            root.__dict__["_site"] = site
            if site in self._read_sites:
                self._exchange.begin(root)

    def _on_read(self, tensor: GlobalTensor) -> None:
        site = tensor.__dict__.get("_site")
        if site is not None:
            self._read_sites.add(site)

    # -- at the end ----------------------------------------------------------------------------------------------------

    def settle(self, value: Any) -> Any:
        """Return `value` with everything in it that spans the ranks whole. Every rank calls it on the same things.

        Lists, dicts and attributes of objects are changed in place, so who else refers to them sees it.
        """
        return self._settled(value, set())

    def _settled(self, value: Any, seen: set[int]) -> Any:
        if isinstance(value, GlobalTensor):
            return self._rules.whole(value).detach().requires_grad_(value.requires_grad and value.dtype.is_floating_point)
        if id(value) in seen or isinstance(value, torch.Tensor | nn.Module | type | str | bytes | int | float):
            return value
        seen.add(id(value))
        if isinstance(value, list):
            for index, item in enumerate(value):
                new = self._settled(item, seen)
                if new is not item:
                    value[index] = new
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                new = self._settled(item, seen)
                if new is not item:
                    value[key] = new
        elif isinstance(value, tuple):
            items = [self._settled(item, seen) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        elif type(value).__module__ == "__main__" and hasattr(value, "__dict__"):
            self._settled(value.__dict__, seen)
        return value


def batch_parts(batch: Any, share: Share) -> Any:
    """Return a loaded batch with the rank's part of every tensor in it placed along dim 0.

    Tensors whose dim 0 is not the number of loaded samples are left: they are the same for all samples.
    """
    loaded = share.loaded.stop - share.loaded.start

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == loaded:
            return place(value, Shard(0, share))
        return value

    return pytree.tree_map(convert, batch)
