"""Whether samples of a batch depend on each other in a model although the results keep one row per sample.

A ``forward`` may compute a statistic of its batch (a maximum to quantize by, a spread). On a share, that would be the share's statistic.
Among PyTorch's own layers this concerns BatchNorm, which `normalization` handles, and layers along a dim that the model may mix up: an LSTM
without ``batch_first``, given batch-first data, runs from sample to sample. For a model that has such a layer, or code that is not
PyTorch's, some samples are computed without the others and must give equal results. Each such call draws random numbers for the whole
batch, from one state of the stream, and uses the rows of its samples. Reading the code cannot replace this: samples can be mixed by a sum,
a size, a loop or a method of any object.

With code of others, the first samples of the share are computed alone. Then the full batch is compared with the share: the maximum may be
among the first samples, and a share may be too small to show a dependence (the three largest of two samples). For a sequence layer alone,
some samples in the middle suffice, as it takes from each sample to the next or to the one before. If a rank has a single sample, or the
model refuses so few (it inverts their covariance), only the full batch tells. If memory is too small for the full batch, the share's last
samples are used instead.

A dependence that changes nothing in this batch (a branch not taken) is found from the operations (`sample_flow`). What a later call
may run for the first time, such as a branch by a step count, is found from the code (`later_paths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from ..code_inspection import code_uses, model_uses
from ..module_tree import layers_taking_statistics, modules_in
from ..rng.global_sampling import GlobalSampling
from ..rng.sample_sites import SampleSites
from ..rng.streams import ModelStream
from ..tensor.placement_types import Shard
from ..tensor.redistribute import Exchange
from ..tensor.view import GlobalView
from .parts_alone import Part, depends_across_samples, differs
from .sample_flow import SampleFlow
from .sample_order import is_unsure

FEW = 2
"""Samples that are computed without the others."""
FEWEST = 2
"""Fewest samples in a share from which statistics can be computed."""

_PARTS = frozenset(("chunk", "split", "tensor_split", "unbind", "vsplit"))
SEQUENCE_LAYERS = (nn.RNNBase, nn.MultiheadAttention)
"""PyTorch's layers along a sequence dim, which is the batch dim if the model passes another layout than the layer expects."""
_ALONG_A_DIM = (*SEQUENCE_LAYERS, nn.Softmax, nn.LogSoftmax, nn.Softmin)


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplesOfCall:
    """The samples of the batch in a model's first call.

    Attributes
    ----------
    module : nn.Module
        The model.
    placement : Shard
        The samples that this rank has.
    view : GlobalView
    stream : ModelStream
    sites : SampleSites, optional
        As in :func:`depends_across_samples`.
    call : callable
        Calls the model in a mode, with its arguments converted by the first argument, and undoes all effects of that call.
    dims_of : callable
        As in :func:`depends_across_samples`.
    flows : list of SampleFlow
        One for each call that was made.
    """

    module: nn.Module
    placement: Shard
    view: GlobalView
    stream: ModelStream
    sites: SampleSites | None
    call: Callable[[Any, AbstractContextManager[Any]], Any]
    dims_of: Callable[[tuple[int, ...]], Sequence[int | None] | None]
    flows: list[SampleFlow] = field(default_factory=list)

    def mix(self, result: Any, drawing: GlobalSampling | None) -> bool:
        """Return whether samples depend on each other in the model, on any rank. A collective if the model has code that is not PyTorch's.

        Parameters
        ----------
        result : object
            Result of the call on the rank's share.
        drawing : GlobalSampling, optional
            The random numbers drawn in that call.
        """
        if normalizes_parts(self.module):
            return True
        own, total = self.placement.share.loaded, self.placement.share.total
        others_code = has_others_code(self.module)
        alone = left_alone(self.module, own.stop - own.start, others_code=others_code)
        if not alone:
            return False
        known = result if shows_itself(self.module, drawing, self.sites) else None
        share = Part(own, partial(self.view.arguments.shard_argument, placement=self.placement), known)
        of_all = [Part(slice(0, total), self.view.full_tensor), share]
        if self.view.arguments.smallest(self.placement) < FEWEST:  # a share of one sample has none to leave out: compare with the batch
            return any(self._of_ranks(of_all)) or (others_code and self._flow_together())
        tried = alone[:1] if others_code else alone
        of_ranks = self._of_ranks([share, *map(self._part, tried)])
        if not any(of_ranks) and (others_code or None in of_ranks):
            of_ranks = self._of_ranks(of_all)
            if others_code and None in of_ranks and not any(of_ranks):  # out of memory on the full batch, for example
                of_ranks = self._of_ranks([share, *map(self._part, alone[1:])])
        return any(of_ranks) or (others_code and self._flow_together())

    def _flow_together(self) -> bool:
        """Return whether a value is computed from several samples in any rank's calls, without effect in this batch. A collective."""
        if any(Exchange.objects(len({flow.number for flow in self.flows}) < 2)):
            self._of_ranks([Part(self.placement.share.loaded, partial(self.view.arguments.shard_argument, placement=self.placement))])
        pairs = [(one, other) for one in self.flows[:1] for other in self.flows if other.number != one.number]
        found = next((one.mixes(other, differs) for one, other in pairs), None)
        unsure = bool(pairs) and all(is_unsure(one, other) for one, other in pairs)
        of_ranks = Exchange.objects((found is not None, unsure))
        return any(mixes for mixes, _ in of_ranks) or all(unsure for _, unsure in of_ranks)

    def _part(self, some: slice) -> Part:
        start = self.placement.share.loaded.start
        return Part(slice(start + some.start, start + some.stop), self.view.arguments.some(self.placement, some))

    def _of_ranks(self, parts: Sequence[Part]) -> list[bool | None]:
        depends = depends_across_samples(
            self.module,
            self.call,
            parts,
            total=self.placement.share.total,
            stream=self.stream,
            sites=self.sites,
            dims_of=self.dims_of,
            flows=self.flows,
        )
        return Exchange.objects(depends)


def has_others_code(model: nn.Module) -> bool:
    """Return whether `model` contains code that is not PyTorch's own."""
    return any(isinstance(module, torch.jit.ScriptModule) for module in modules_in(model)) or model_uses(model, lambda *_: True)


def goes_along_a_dim(model: nn.Module) -> bool:
    """Return whether a layer in `model` goes along a dim that the model may mix up with that of samples."""
    return any(isinstance(module, _ALONG_A_DIM) for module in modules_in(model))


def left_alone(model: nn.Module, number: int, *, others_code: bool) -> tuple[slice, ...]:
    """Return the slices of `number` samples that are each computed without the others; empty if `model` cannot mix samples."""
    if not others_code and not goes_along_a_dim(model):
        return ()
    few = FEW if number > FEW else 1
    if others_code or number < FEW + 2:
        return slice(0, few), slice(number - few, number)
    start = (number - few) // 2
    return (slice(start, start + few),)


def normalizes_parts(model: nn.Module) -> bool:
    """Return whether a module in `model` may pass its BatchNorm parts of the batch in turn, as many for a share as for the full batch."""
    for module in modules_in(model):
        if any(layer in module.children() for layer in layers_taking_statistics(module)):
            own = [value for kind in type(module).__mro__ for value in vars(kind).values()]
            if any(code_uses(value, lambda _, names: not _PARTS.isdisjoint(names)) for value in own):
                return True
    return False


def scales_tables(model: nn.Module) -> bool:
    """Return whether an embedding in `model` rescales looked-up rows in place (``max_norm``): a rank looks up its samples' rows only."""
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None for module in modules_in(model))


def shows_itself(model: nn.Module, drawing: GlobalSampling | None, sites: SampleSites | None) -> bool:
    """Return whether the result of a call can serve as that of the same samples in :func:`depends_across_samples`, without another call.

    Parameters
    ----------
    model : nn.Module
    drawing : GlobalSampling, optional
        The random numbers drawn in that call; ``None``: not recorded.
    sites : SampleSites, optional
        As in :func:`depends_across_samples`.
    """
    if drawing is None or drawing.per_rank or (drawing.drawn and sites is None):
        return False
    # In evaluation mode, PyTorch's layers may use other kernels when gradients are off.
    as_is = not torch.is_grad_enabled() or all(module.training for module in modules_in(model))
    return as_is and not layers_taking_statistics(model)


@contextmanager
def at_the_end(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` at the end of the ``with`` block unless it raised."""
    yield
    tell()
