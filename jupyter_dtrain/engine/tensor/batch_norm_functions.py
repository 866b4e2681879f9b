"""Autograd functions for BatchNorm that save only the input batch, as PyTorch's own BatchNorm does.

With plain operations, autograd would also save the intermediates: twice the batch for each layer.
"""

from __future__ import annotations

from typing import Any

import torch


class _Sums(torch.autograd.Function):
    """Sums of ``x - origin`` and of its squares over the batch: from x ``(b, C, …)`` and an origin ``(C,)``, two tensors ``(C,)``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, origin: torch.Tensor, kind: torch.dtype) -> Any:
        ctx.save_for_backward(x, origin)
        ctx.save_for_forward(x, origin)
        ctx.set_materialize_grads(False)
        ctx.kind = kind
        apart = x - of_channels(origin, x)
        sums = apart.sum(dims_of(x), dtype=kind)
        return sums, apart.square_().sum(dims_of(x), dtype=kind)

    @staticmethod
    def backward(ctx: Any, of_sum: torch.Tensor | None, of_squares: torch.Tensor | None) -> Any:
        x, origin = ctx.saved_tensors
        passed = [] if of_squares is None else [(x - of_channels(origin, x)) * of_channels(2 * of_squares, x)]
        passed += [] if of_sum is None else [of_channels(of_sum, x).expand_as(x)]
        return sum(passed[1:], passed[0]).to(x.dtype) if passed else None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor | None, *_: Any) -> Any:
        x, origin = ctx.saved_tensors
        tangent = torch.zeros_like(x) if tangent is None else tangent
        apart = x - of_channels(origin, x)
        return tangent.sum(dims_of(x), dtype=ctx.kind), (2 * apart * tangent).sum(dims_of(x), dtype=ctx.kind)


class _Normalized(torch.autograd.Function):
    """``(x - mean) * scale + bias`` for x ``(b, C, …)``; mean, scale and bias are ``(C,)``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, mean, scale)
        ctx.save_for_forward(x, mean, scale)
        ctx.set_materialize_grads(False)
        ctx.dtypes = x.dtype, mean.dtype, scale.dtype, bias.dtype
        result: torch.Tensor = x - of_channels(mean, x)
        return result.mul_(of_channels(scale, x)).add_(of_channels(bias, x))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        if grad is None:
            return None, None, None, None
        x, mean, scale = ctx.saved_tensors
        of_x, of_mean, of_scale, of_bias = ctx.dtypes
        passed, dims = grad * of_channels(scale, x), dims_of(x)
        spread = (grad * (x - of_channels(mean, x))).sum(dims)
        # The mean's gradient is bit for bit the negated sum of the input's, so that gradients which cancel (a bias before the layer) are 0.
        return passed.to(of_x), -passed.sum(dims).to(of_mean), spread.to(of_scale), grad.sum(dims).to(of_bias)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> torch.Tensor:
        x, mean, scale = ctx.saved_tensors
        apart = x - of_channels(mean, x)
        given = zip(tangents, (x, mean, scale, mean), strict=True)  # a bias has the mean's shape
        tangent, of_mean, of_scale, of_bias = (torch.zeros_like(value) if one is None else one for one, value in given)
        moved = (tangent - of_channels(of_mean, x)) * of_channels(scale, x) + apart * of_channels(of_scale, x)
        result: torch.Tensor = moved + of_channels(of_bias, x)
        return result


def batch_sums(x: torch.Tensor, origin: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums over a batch ``(b, C, …)`` of differences from `origin` ``(C,)`` and of their squares, each ``(C,)``."""
    sums: tuple[torch.Tensor, torch.Tensor] = _Sums.apply(x, origin, kind)  # type: ignore[no-untyped-call]
    return sums


def normalized(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return ``(x - mean) * scale + bias`` for x ``(b, C, …)``; mean, scale and bias are ``(C,)``."""
    result: torch.Tensor = _Normalized.apply(x, mean, scale, bias)  # type: ignore[no-untyped-call]
    return result


def dims_of(x: torch.Tensor) -> list[int]:
    """Return the dims over which the layer takes statistics."""
    return [dim for dim in range(x.dim()) if dim != 1]


def of_channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return `values` ``(C,)`` as a view that broadcasts against `x` ``(b, C, …)``."""
    return values.view([-1 if dim == 1 else 1 for dim in range(x.dim())])
