"""Sharing out what the cell calls models on where no loader has done so: batches that it draws by index, or all data at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..view.placements import GlobalTensor, Shard, place
from ..view.shares import Share

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class InputShares:
    """Places the inputs of models: the first tensor of a call has a row for each sample, and what else has follows from that.

    Parameters
    ----------
    share : callable
        Returns the rank's share of a batch of so many samples.
    on_shared : callable
        Told of each call whose input was shared out.
    """

    def __init__(self, share: Callable[[int], Share], on_shared: Callable[[], None]) -> None:
        self._share, self._on_shared = share, on_shared

    def placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return a call's arguments with the first tensor among them placed, unless one of them is already."""
        found = list(_tensors((*args, *kwargs.values())))
        if not found or any(isinstance(tensor, GlobalTensor) for tensor in found):
            return args, kwargs
        first = found[0]
        if isinstance(first, nn.Parameter) or first.layout != torch.strided or not first.dim() or len(first) < 2:
            return args, kwargs
        share = self._share(len(first))
        rows = place(first[share.loaded], Shard(0, share))
        self._on_shared()

        def convert(value: Any) -> Any:
            if value is first:
                return rows
            return {key: convert(item) for key, item in value.items()} if type(value) is dict else value

        return tuple(convert(arg) for arg in args), {key: convert(value) for key, value in kwargs.items()}


def _tensors(values: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """Yield the tensors among a call's arguments, and in a dict of them; a list holds no batch, but one thing per sample."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) is dict:
            yield from _tensors(tuple(value.values()))
