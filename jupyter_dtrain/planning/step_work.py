"""What a training step computes, and what of it other engines would have to be given: counted while the step runs on fakes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

LARGE = 1 << 16
"""Bytes of a parameter that is divided, by rows or by columns."""


class LinearCall(NamedTuple):
    """A call of a large linear layer: bytes of what it is given and returns, its FLOPs, and whether what it is given has a gradient.

    `place`: whether it is the ``first`` of a pair, its ``second``, an attention by ``heads`` or, with an empty word, none of these.
    `heads`: how many there are. `hidden`: bytes of what is kept between the layers of a pair, or in an attention.
    `parameters`: bytes of those that are divided.
    """

    given: int
    returned: int
    flops: int
    is_given_gradient: bool
    place: str
    heads: int = 0
    hidden: int = 0
    parameters: int = 0

    def is_divided(self, engines: int) -> bool:
        """Return whether so many engines divide it."""
        return not self.heads % engines


class AtomCall(NamedTuple):
    """A call of what is computed in one piece: the place of its first parameter among the model's groups, and bytes of tensors.

    `chain`: which ``nn.Sequential`` calls it, -1: other code. `flops`: of its forward pass. `kept`: bytes that are there after it and were
    not before, what it returns among them.
    """

    group: int
    chain: int
    given: int
    returned: int
    flops: int
    is_given_gradient: bool
    kept: int = 0


class Counts(NamedTuple):
    """Floating-point operations, bytes that are read and written, and operations.

    `seconds`: of those that were tried; `tried_flops`, `tried_traffic`: what these have of the rest.
    """

    flops: int = 0
    traffic: int = 0
    operations: int = 0
    seconds: float = 0.0
    tried_flops: int = 0
    tried_traffic: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts._make([one + more for one, more in zip(self, other, strict=True)])

    def since(self, before: Counts) -> Counts:
        """Return the differences."""
        return Counts._make([one - less for one, less in zip(self, before, strict=True)])


@dataclass(frozen=True)
class StepWork:
    """What a step does.

    Attributes
    ----------
    samples : int
        Of the share of which this is.
    passes : Counts
        Of the forward and the backward pass.
    updating, updates : int
        Bytes and operations of the optimizer.
    fetched : int
        Bytes of large parameters that blocks and layers get for their calls, in the forward pass and again in the backward pass.
    large : int
        Bytes of the gradients of large parameters.
    units : int
        Blocks and layers that have any.
    linears : tuple of LinearCall
    atoms : tuple of AtomCall
    hands_on : bool
        Whether stages can hand on activations: no BatchNorm, no recurrent layers.
    """

    samples: int = 0
    passes: Counts = field(default_factory=Counts)
    updating: int = 0
    updates: int = 0
    fetched: int = 0
    large: int = 0
    units: int = 0
    linears: tuple[LinearCall, ...] = ()
    atoms: tuple[AtomCall, ...] = ()
    hands_on: bool = True


class Work:
    """Adds up what operations do, as :class:`.LiveBytes` shows them.

    Attributes
    ----------
    counts : Counts
    """

    def __init__(self) -> None:
        self.counts = Counts()

    def add(self, func: Any, args: Any, kwargs: Any, result: Any, seconds: float | None = None) -> None:
        """Count an operation; one that was tried takes so many `seconds`."""
        if _is_view(func):
            return
        traffic = all_bytes(args) + all_bytes(result)
        count = flop_registry.get(func._overloadpacket) or _MORE.get(func._overloadpacket)
        flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
        tried = Counts() if seconds is None else Counts(0, 0, 0, seconds, flops, traffic)
        self.counts = self.counts.plus(tried._replace(flops=flops, traffic=traffic, operations=1))

    def lap(self) -> Counts:
        """Return what there was since the last lap."""
        found, self.counts = self.counts, Counts()
        return found


@functools.cache
def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the products of attention, (B, H, L, E) and (B, H, S, E)."""
    return 2 * query.numel() * key.shape[-2] + 2 * query.numel() // query.shape[-1] * key.shape[-2] * value.shape[-1]


def _attention_backward(_: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: Any, **___: Any) -> int:
    return 5 * _attention(query, key, value) // 2


def _recurrent(given: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a layer of oneDNN's, (T, B, I), with weights (G, I) and (G, H)."""
    return 2 * given.shape[0] * given.shape[1] * (w0.numel() + w1.numel())


_ATEN = torch.ops.aten
_MORE: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _ATEN.mkldnn_rnn_layer: _recurrent,
    _ATEN.mkldnn_rnn_layer_backward: lambda *args, **kwargs: 2 * _recurrent(*args, **kwargs),
}


def all_bytes(values: Any) -> int:
    """Return the bytes of all tensors in some values."""
    if isinstance(values, torch.Tensor):
        return bytes_of(values)
    if isinstance(values, dict):
        values = values.values()
    return sum(map(all_bytes, values)) if isinstance(values, Iterable) and not isinstance(values, str) else 0


def bytes_of(value: Any) -> int:
    """Return the bytes of a tensor, 0 of anything else."""
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) and value.layout == torch.strided else 0
