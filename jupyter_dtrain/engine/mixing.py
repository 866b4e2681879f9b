"""Whether a model lets samples of a batch depend on each other, which its results do not show.

On a share, a statistic that a ``forward`` takes of its batch (the largest value, to quantize by; a spread, to see how varied a batch is)
would be one of the share. Layers of PyTorch's own take none but BatchNorm's, of which `normalization` knows, and those that go along a dim
which the model may mean to be another one: an LSTM without ``batch_first`` that is given the batch first goes from sample to sample. So
where a model has such a layer, or the code of others in it a word of statistics, the first samples of a share, and then the last, are put
through the model without the others: their results are to be the same. (The largest value of all can be among one of them only.) Where
a rank has a single sample, there are no others to leave out: all of the batch are put through, and then the share. What the model draws at
random is drawn for all samples each time, from one state of the stream, and those that are put through get their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .draw_sites import DrawSites
from .drawing import Drawing
from .modules import modules_in, uses_names
from .placements import GlobalTensor
from .randomness import ModelStream

FEW = 2
"""Samples that are put through alone."""

_STATISTICS = frozenset(
    """
    all amax amin aminmax any argmax argmin argsort batch_norm bincount cdist corrcoef count_nonzero cov cummax cummin cumprod cumsum
    diff dist einsum flip histc kthvalue layer_norm log_softmax logcumsumexp logsumexp max mean median min minimum maximum mm matmul mode
    moveaxis movedim nanmean nanmedian nansum norm normalize permute pinverse prod qr quantile roll softmax sort std std_mean sum svd
    swapaxes swapdims T t tensordot topk transpose unique var var_mean vector_norm
    """.split()  # noqa: SIM905
)
SEQUENCE_LAYERS = (nn.RNNBase, nn.MultiheadAttention)
"""Layers of PyTorch's that go along a sequence, which is the batch itself where a model gives them another layout than they take it for."""
_ALONG_A_DIM = (*SEQUENCE_LAYERS, nn.Softmax, nn.LogSoftmax, nn.Softmin)
_CLOSE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4}
"""By how much of the largest value results may differ that were computed with other sizes."""
_CLOSE_ELSEWHERE = 1e-2  # in half precision, and on devices that round to it inside


def may_mix(model: nn.Module) -> bool:
    """Return whether `model` has a layer that may go along the batch, or code that is not PyTorch's own and has a word of that."""
    if any(isinstance(module, (*_ALONG_A_DIM, torch.jit.ScriptModule)) for module in modules_in(model)):  # compiled code has no names
        return True
    return uses_names(model, lambda names: not _STATISTICS.isdisjoint(names))


@contextmanager
def _known_statistics_kept(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm in `model` take no statistics of the batch: it is known that it does."""
    layers = [layer for layer in modules_in(model) if isinstance(layer, _BatchNorm) and layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


def ends_of(number: int) -> tuple[slice, slice]:
    """Return the first and the last of a rank's samples, which are put through alone."""
    few = FEW if number > FEW else 1
    return slice(0, few), slice(number - few, number)


def mixes_samples(
    model: nn.Module,
    run: Callable[[Any, TorchFunctionMode], Any],
    parts: Sequence[tuple[slice, Any]],
    *,
    stream: ModelStream,
    sites: DrawSites | None,
    dims_of: Callable[[tuple[int, ...]], Sequence[int | None] | None],
) -> bool:
    """Return whether some samples come to something else without the others.

    Parameters
    ----------
    model : nn.Module
    run : callable
        Calls the model with arguments, in a mode, and undoes what that does, to random streams as well.
    parts : sequence of (slice, tuple)
        Which samples are in which arguments: all of them first, the rank's or those of the batch.
    stream : ModelStream
    sites : DrawSites, optional
        Along which dims the model draws for its samples; ``None``: it is guessed by sizes.
    dims_of : callable
        Returns the dims of the samples in results with so many dims each.
    """
    number = parts[0][0].stop
    results: list[list[torch.Tensor]] = []
    try:
        with _known_statistics_kept(model):
            for samples, arguments in parts:
                drawing = Drawing(samples, number, stream, sites)
                results.append(_tensors_in(run(arguments, drawing)))
                sites = sites or DrawSites(drawing.drawn, drawing.dims)
                if drawing.per_rank:
                    return False
    except Exception:  # it takes no other number of samples than it was made for
        return False
    dims = dims_of(tuple(result.dim() for result in results[0]))
    if dims is None or any(len(end) != len(results[0]) for end in results):
        return False
    return any(_differs(result, dim, number, parts, others) for result, dim, *others in zip(results[0], dims, *results[1:], strict=True))


def _tensors_in(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, GlobalTensor | nn.Parameter)]


def _differs(
    result: torch.Tensor, dim: int | None, number: int, parts: Sequence[tuple[slice, Any]], others: Sequence[torch.Tensor]
) -> bool:
    """Return whether a result of all `number` samples, which are along `dim`, has others for some than those that these come to."""
    if dim is None or not (result.is_floating_point() or result.is_complex()):
        return False
    close = _CLOSE.get(result.dtype, _CLOSE_ELSEWHERE) if result.device.type == "cpu" else _CLOSE_ELSEWHERE
    largest = result.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if result.numel() else 0.0
    for (samples, _), other in zip(parts[1:], others, strict=True):
        if other.dim() != result.dim():
            return False
        start = samples.start * (result.shape[dim] // number)
        if start + other.shape[dim] > result.shape[dim]:
            return False
        there = result.narrow(dim, start, other.shape[dim])
        if there.shape == other.shape and not torch.allclose(there, other, rtol=0.0, atol=largest * close, equal_nan=True):
            return True
    return False
