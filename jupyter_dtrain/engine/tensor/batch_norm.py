"""BatchNorm inside a model on the rank's shard, with the statistics of the global batch.

Each rank sums over its shard, one all-reduce adds the sums, and the backward pass runs the adjoint of the all-reduce. Layers normalize as
on one process, and their running statistics are equal on every rank. PyTorch's ``SyncBatchNorm`` supports GPUs only, and the user has to
put it into the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ...system.patches import patched
from ..identity_map import IdentityMap
from ..module_tree import Found, layers_taking_statistics, modules_in
from .batch_norm_functions import batch_sums, normalized, of_channels
from .batch_shard import BatchShard
from .functional_collectives import nothing_of
from .recomputed_functions import recomputed_as
from .redistribute import Exchange


class GlobalNormalization:
    """Normalizes over the global batch while a model is called on a shard.

    Attributes
    ----------
    share : BatchShard, optional
        The shard that a model is called on now. ``None``: PyTorch's own normalization.
    again : bool
        Whether a backward pass runs, which may recompute layers (activation checkpointing). They use the shard of the checkpointed call, or
        that of their last call if something other than PyTorch recomputes them.
    """

    def __init__(self) -> None:
        self.share: BatchShard | None = None
        self.again = False
        self._is_checkpointed = False  # whether `share` is that of a checkpointed call which is recomputed
        self._shares: IdentityMap[BatchShard | None] = IdentityMap()  # by a layer's running mean: the shard of its last call

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace ``torch.nn.functional.batch_norm`` until the end of the ``with`` block.

        The input is ``(b, C, …)`` on each rank. Mean and variance ``(C,)`` are taken over all ``B`` samples.
        """
        original = F.batch_norm

        @wraps(original)
        def batch_norm(
            input: torch.Tensor,  # noqa: A002 -- as PyTorch names it
            running_mean: torch.Tensor | None,
            running_var: torch.Tensor | None,
            weight: torch.Tensor | None = None,
            bias: torch.Tensor | None = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> torch.Tensor:
            share = self.share
            if training and running_mean is not None:
                if self.again:
                    share = share if share is not None or self._is_checkpointed else self._shares.get(running_mean)
                else:
                    self._shares.set(running_mean, share)
            if share is None or not training:
                return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
            return _normalized(input, share, running_mean, running_var, weight, bias, momentum, eps)

        with patched(F, "batch_norm", batch_norm), recomputed_as(self._of_its_call):
            yield

    def _of_its_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a checkpointed `function` that is recomputed with the shard of its own call."""
        share = self.share

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self.again:
                return function(*args, **kwargs)
            before = self.share, self._is_checkpointed
            self.share, self._is_checkpointed = share, True
            try:
                return function(*args, **kwargs)
            finally:
                self.share, self._is_checkpointed = before

        return run


def _normalized(
    x: torch.Tensor,
    share: BatchShard,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    F._verify_batch_size(torch.Size((share.total, *x.shape[1:])))  # type: ignore[attr-defined]
    channels = x.shape[1]
    # Sum differences from a value near the mean that all ranks have: with sums of raw squares, large means would cancel.
    origin = x.new_zeros(channels) if running_mean is None else running_mean.detach().to(x.dtype, copy=True)
    counted = x if share.num_samples else nothing_of(x) + of_channels(origin, x)
    kind = torch.promote_types(x.dtype, torch.float32)
    count = x.new_full((1,), x.numel() / channels if share.num_samples else 0.0, dtype=kind)
    try:
        sums = Exchange.sum(torch.cat([*batch_sums(counted, origin, kind), count]))
    except BaseException:
        _uncount(running_mean)
        raise
    total = sums[-1].detach()
    offset = sums[:channels] / total
    variance = sums[channels:-1] / total - offset.square()
    mean = origin + offset
    with torch.no_grad():
        # Via `.data`, which bumps no version counter, as in PyTorch: another call of the layer may have saved these for its backward pass.
        if running_mean is not None:
            running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.data.lerp_((variance * (total / (total - 1))).to(running_var.dtype), momentum)
    scale = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    return normalized(x, mean, scale, torch.zeros_like(scale) if bias is None else bias).to(x.dtype)


def _uncount(running_mean: torch.Tensor | None) -> None:
    """Undo the layer's ``num_batches_tracked += 1`` for this batch, when the exchange fails because another rank could not load it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and running_mean is not None:
        layer = frame.f_locals.get("self")
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.running_mean is running_mean:
            if layer.num_batches_tracked is not None:
                layer.num_batches_tracked.sub_(1)
            return
        frame = frame.f_back


class NormalizationLayers:
    """Finds the layers of models that normalize by statistics of a batch.

    Parameters
    ----------
    per_rank : bool
        Whether BatchNorm takes the statistics of each rank's shard. InstanceNorm always does.
    """

    def __init__(self, *, per_rank: bool) -> None:
        self._per_rank = per_rank
        self._found = Found(lambda module: [layer for layer in modules_in(module) if isinstance(layer, _NormBase)])

    def of(self, module: nn.Module) -> list[_NormBase]:
        """Return the normalization layers in `module`."""
        return self._found.of(module)

    def take_statistics(self, module: nn.Module) -> bool:
        """Return whether BatchNorm in `module` takes statistics of the rank's shard alone now."""
        return self._per_rank and module.training and bool(layers_taking_statistics(module))

    def statistics_in(self, modules: Sequence[nn.Module]) -> list[torch.Tensor]:
        """Return the running statistics, each once, of layers in `modules` that now take them from the rank's shard alone."""
        layers = {id(layer): layer for module in modules for layer in self.of(module) if self._is_own(layer)}
        return [buffer for layer in layers.values() for buffer in (layer.running_mean, layer.running_var) if buffer is not None]

    def _is_own(self, layer: _NormBase) -> bool:
        return layer.training and (self._per_rank or not isinstance(layer, _BatchNorm))
