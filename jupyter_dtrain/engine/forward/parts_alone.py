"""Compare the results of samples computed with and without the rest of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..module_tree import layers_taking_statistics
from ..rng.global_sampling import GlobalSampling
from ..rng.sample_sites import SampleSites
from ..rng.streams import ModelStream
from ..tensor.placement_types import GlobalTensor
from .sample_flow import SampleFlow

_CLOSE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4}
"""Tolerance relative to the largest value, for results computed with other batch sizes."""
_CLOSE_ELSEWHERE = 1e-2  # for half precision, and for devices that may round to it internally


@dataclass(frozen=True, eq=False)
class Part:
    """Some samples of a batch on which a model is called.

    Attributes
    ----------
    samples : slice
        Their range in the batch.
    arguments : callable
        Converts the model's arguments to those for these samples.
    result : object, optional
        Their result, if it is known already.
    """

    samples: slice
    arguments: Callable[[Any], Any]
    result: Any = None


@contextmanager
def _known_statistics_kept(model: nn.Module) -> Iterator[None]:
    """Put BatchNorm layers of `model` in evaluation mode: their dependence on the batch is known."""
    layers = layers_taking_statistics(model)
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


@contextmanager
def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> Iterator[None]:
    with first, second:
        yield


def depends_across_samples(
    model: nn.Module,
    run: Callable[[Any, AbstractContextManager[Any]], Any],
    parts: Sequence[Part],
    *,
    total: int,
    stream: ModelStream,
    sites: SampleSites | None,
    dims_of: Callable[[tuple[int, ...]], Sequence[int | None] | None],
    flows: list[SampleFlow],
) -> bool | None:
    """Return whether results of samples change without the other samples; ``None`` if the model fails on so few.

    Parameters
    ----------
    model : nn.Module
    run : callable
        Calls the model with given arguments in a mode and undoes all effects; random streams start as at the model's first call.
    parts : sequence of Part
        The first has all samples, of the rank or of the batch; the others are computed without the rest.
    total : int
        Samples in the batch.
    stream : ModelStream
    sites : SampleSites, optional
        Dims along which the model draws for its samples; ``None``: guess by sizes.
    dims_of : callable
        Returns the batch dims of results, given the number of dims of each.
    flows : list of SampleFlow
        Receives the operations of each call.
    """
    results: list[list[torch.Tensor]] = []
    try:
        with _known_statistics_kept(model):
            for part in parts:
                if part.result is not None:
                    results.append(_tensors_in(part.result))
                    continue
                drawing = GlobalSampling(part.samples, total, stream, sites)
                flow = SampleFlow(part.samples)
                results.append(_tensors_in(run(part.arguments, _both(drawing, flow))))
                flows.append(flow)
                sites = sites or SampleSites(drawing.drawn, drawing.dims)
                if drawing.per_rank:
                    return False
    except Exception:
        return None
    dims = dims_of(tuple(result.dim() for result in results[0]))
    if dims is None:
        return False
    if any(len(result) != len(results[0]) for result in results):
        return True
    slices = [part.samples for part in parts]
    return any(differs(result, dim, slices, others) for result, dim, *others in zip(results[0], dims, *results[1:], strict=True))


def _tensors_in(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, GlobalTensor | nn.Parameter)]


@torch.no_grad()  # hooks of saved tensors, such as those of activation checkpointing, would count what a comparison saves
def differs(result: torch.Tensor, dim: int | None, samples: Sequence[slice], others: Sequence[torch.Tensor]) -> bool:
    """Return whether `result`, of the first slice in `samples` along `dim`, differs from `others`, the results of the remaining slices."""
    if dim is None:
        return False
    is_exact = not (result.is_floating_point() or result.is_complex())  # ranks, indices, masks
    close = _CLOSE.get(result.dtype, _CLOSE_ELSEWHERE) if result.device.type == "cpu" else _CLOSE_ELSEWHERE
    largest = 0.0 if is_exact or not result.numel() else result.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    everyone, *parts = samples
    size = result.shape[dim] // (everyone.stop - everyone.start)
    for part, other in zip(parts, others, strict=True):
        if other.dim() != result.dim():
            return False
        start = (part.start - everyone.start) * size
        if start + other.shape[dim] > result.shape[dim]:
            return False
        there = result.narrow(dim, start, other.shape[dim])
        if there.shape != other.shape:
            continue
        if not (torch.equal(there, other) if is_exact else torch.allclose(there, other, rtol=0.0, atol=largest * close, equal_nan=True)):
            return True
    return False
