"""Stand-ins for the start and the end of a cell's step: the first batch of its loader, and a loss as cells usually compute it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset


def first_batch(loader: Any) -> Any:
    """Return the first batch of a loader, collated in this process and not by a worker."""
    if type(loader) is not DataLoader:
        return next(iter(loader))
    if isinstance(loader.dataset, IterableDataset):
        rows = iter(loader.dataset)
        return next(rows) if loader.batch_size is None else loader.collate_fn([*itertools.islice(rows, loader.batch_size)])
    if loader.batch_sampler is None:
        return loader.collate_fn(loader.dataset[next(iter(loader.sampler))])
    indices = next(iter(loader.batch_sampler))
    whole = getattr(loader.dataset, "__getitems__", None)
    return loader.collate_fn(whole(indices) if whole is not None else [loader.dataset[index] for index in indices])


def batch_size_of(batch: Any) -> int:
    """Return the number of samples of a batch: the most frequent length of dim 0 among its tensors."""
    lengths = [leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return max(lengths, key=lengths.count) if lengths else 0


def loss_of(output: Any, batch: Any) -> tuple[torch.Tensor, str]:
    """Return a loss that fits the output and the batch, and the loss's name.

    Parameters
    ----------
    output : object
        Output of the model. Its own ``loss`` is used if it has one.
    batch : object
        Its last tensor is taken as the target.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if torch.is_tensor(own):
        return own, "the model's own loss"
    first = next(leaf for leaf in tree_leaves(output) if torch.is_tensor(leaf) and leaf.is_floating_point())
    tensors = [leaf for leaf in tree_leaves(batch) if torch.is_tensor(leaf)]
    target = tensors[-1] if len(tensors) > 1 else None
    if target is not None and not target.is_floating_point():
        if target.dim() == first.dim() - 1 and target.shape == (first.shape[0], *first.shape[2:]):
            return F.cross_entropy(first, target.long()), "cross_entropy"
        if first.dim() > 1 and target.numel() == first.numel() // first.shape[-1]:
            return F.cross_entropy(first.flatten(0, -2), target.flatten().long()), "cross_entropy"
    if target is not None and target.is_floating_point() and target.numel() == first.numel():
        return F.mse_loss(first, target.view_as(first)), "mse_loss"
    return first.square().mean(), "the mean square of the output"
