"""Count what a training step computes, and what engines would have to exchange, while the step runs on fakes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

LARGE = 1 << 16
"""Bytes from which on a parameter is sharded, by rows or by columns."""


class LinearCall(NamedTuple):
    """A call of a large linear layer: bytes of its input and output, its FLOPs, and whether its input has a gradient.

    `place`: ``first`` or ``second`` of a pair, ``heads`` for an attention by heads, or empty for none of these. `heads`: their number.
    `hidden`: bytes that are kept between the layers of a pair or in an attention. `parameters`: bytes of its parameters that are sharded.
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
        """Return whether the call is divided over `engines`."""
        return not self.heads % engines


class AtomCall(NamedTuple):
    """A call of a module that is computed in one piece: the group of its first parameter, and bytes of its input and output.

    `chain`: the ``nn.Sequential`` that calls it, -1 for other code. `flops`: those of its forward pass. `kept`: bytes that are live after
    it and were not before, its output included.
    """

    group: int
    chain: int
    given: int
    returned: int
    flops: int
    is_given_gradient: bool
    kept: int = 0


class Counts(NamedTuple):
    """Floating-point operations, bytes read and written, and number of operations.

    `seconds`: time of the operations that were timed. `tried_flops`, `tried_traffic`: their FLOPs and bytes, which the totals include.
    """

    flops: int = 0
    traffic: int = 0
    operations: int = 0
    seconds: float = 0.0
    tried_flops: int = 0
    tried_traffic: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sum of both."""
        return Counts._make([one + more for one, more in zip(self, other, strict=True)])

    def since(self, before: Counts) -> Counts:
        """Return the difference to an earlier count."""
        return Counts._make([one - less for one, less in zip(self, before, strict=True)])


@dataclass(frozen=True)
class StepWork:
    """Computation of a step.

    Attributes
    ----------
    samples : int
        Samples of the share.
    passes : Counts
        Work of the forward and the backward pass.
    updating, updates : int
        Bytes and operations of the optimizer.
    fetched : int
        Bytes of large parameters that blocks and layers fetch for the forward pass and again for the backward pass.
    large : int
        Bytes of the gradients of large parameters.
    units : int
        Number of blocks and layers with large parameters.
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
    """Counter of the work of operations, which :class:`.LiveBytes` passes to it.

    Attributes
    ----------
    counts : Counts
    """

    def __init__(self) -> None:
        self.counts = Counts()

    def add(self, func: Any, args: Any, kwargs: Any, result: Any, seconds: float | None = None) -> None:
        """Count an operation; `seconds` is its time if it was timed."""
        if _is_view(func):
            return
        traffic = all_bytes(args) + all_bytes(result)
        count = flop_registry.get(func._overloadpacket) or _MORE.get(func._overloadpacket)
        flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
        tried = Counts() if seconds is None else Counts(0, 0, 0, seconds, flops, traffic)
        self.counts = self.counts.plus(tried._replace(flops=flops, traffic=traffic, operations=1))

    def lap(self) -> Counts:
        """Return the counts since the last lap."""
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
    """Return the FLOPs of an oneDNN recurrent layer, (T, B, I), with weights (G, I) and (G, H)."""
    return 2 * given.shape[0] * given.shape[1] * (w0.numel() + w1.numel())


_ATEN = torch.ops.aten
_MORE: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _ATEN.mkldnn_rnn_layer: _recurrent,
    _ATEN.mkldnn_rnn_layer_backward: lambda *args, **kwargs: 2 * _recurrent(*args, **kwargs),
}


def all_bytes(values: Any) -> int:
    """Return the bytes of all tensors in nested values."""
    if isinstance(values, torch.Tensor):
        return bytes_of(values)
    if isinstance(values, dict):
        values = values.values()
    return sum(map(all_bytes, values)) if isinstance(values, Iterable) and not isinstance(values, str) else 0


def bytes_of(value: Any) -> int:
    """Return the bytes of a strided tensor, 0 for anything else."""
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) and value.layout == torch.strided else 0
