"""Whether a model lets samples of a batch depend on each other, which its results do not show.

On a share, a statistic that a ``forward`` takes of its batch (the largest value, to quantize by; a spread, to see how varied a batch is)
would be one of the share. Layers of PyTorch's own take none but BatchNorm's, of which `normalization` knows, and those that go along a dim
which the model may mean to be another one: an LSTM without ``batch_first`` that is given the batch first goes from sample to sample. So
where a model has such a layer, or code that is not PyTorch's own, a few samples of a share are put through the model without the others:
their results are to be the same. What the model draws at random is drawn for the whole batch each time, from one state of the stream, and
those that are put through get their rows. No word in code tells that it is not needed: samples depend on each other by a sum, a size, a
loop, or a method of an object that the code knows by name.

Of code these are the first samples. Then all of the batch are put through, against the share: the largest value of all can be among the
first, and a share may be too small for a dependence to show (the three largest of two samples). A layer alone takes from every sample to
the next, or to the one before, so some between others show it. Where a rank has a single sample, there are no others to leave out, and
where a model refuses so few (it inverts their covariance), they tell nothing: all of the batch tell it. Where there is no memory for all
of the batch, the last samples of the share are put through instead.

A dependence that makes no difference in this batch, as a branch is not taken, the operations of these calls show (`sample_flow`). One
that a number makes, as of steps, its text shows (`number_branches`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import nn

from ...analysis.code_objects import original_code
from ...analysis.number_branches import mixes, mixes_by_number
from ..code_inspection import call_uses, code_uses, model_uses
from ..module_tree import layers_taking_statistics, modules_in
from ..rng.global_sampling import GlobalSampling
from ..rng.sample_sites import SampleSites
from ..rng.streams import ModelStream
from ..tensor.placement_types import Shard
from ..tensor.redistribute import Exchange
from ..tensor.view import GlobalView
from ..user_frames import is_users
from .parts_alone import Part, depends_across_samples, differs
from .sample_flow import SampleFlow

FEW = 2
"""Samples that are put through alone."""
FEWEST = 2
"""Samples of a share that statistics can be taken of."""

_PARTS = frozenset(("chunk", "split", "tensor_split", "unbind", "vsplit"))
SEQUENCE_LAYERS = (nn.RNNBase, nn.MultiheadAttention)
"""Layers of PyTorch's that go along a sequence, which is the batch itself where a model gives them another layout than they take it for."""
_ALONG_A_DIM = (*SEQUENCE_LAYERS, nn.Softmax, nn.LogSoftmax, nn.Softmin)


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplesOfCall:
    """The samples of the batch that a model is called on for the first time.

    Attributes
    ----------
    module : nn.Module
        The model.
    placement : Shard
        Which of them this rank has.
    view : GlobalView
    stream : ModelStream
    sites : SampleSites, optional
        As in :func:`depends_across_samples`.
    call : callable
        Calls the model on what its first argument makes of what it was given, in a mode, and lets nothing of that be left.
    dims_of : callable
        As in :func:`depends_across_samples`.
    """

    module: nn.Module
    placement: Shard
    view: GlobalView
    stream: ModelStream
    sites: SampleSites | None
    call: Callable[[Any, AbstractContextManager[Any]], Any]
    dims_of: Callable[[tuple[int, ...]], Sequence[int | None] | None]
    flows: list[SampleFlow] = field(default_factory=list)  # of the calls that were made

    def mix(self, result: Any, drawing: GlobalSampling | None) -> bool:
        """Return whether they depend on each other in the model, on any rank. A collective where it has code of others than PyTorch.

        Parameters
        ----------
        result : object
            What the call on the rank's part has returned.
        drawing : GlobalSampling, optional
            What it has drawn.
        """
        if normalizes_parts(self.module):
            return True
        own, total = self.placement.share.loaded, self.placement.share.total
        others_code = has_others_code(self.module)
        alone = left_alone(self.module, own.stop - own.start, others_code=others_code)
        if not alone:
            return False
        known = result if shows_itself(self.module, drawing, self.sites) else None
        share = Part(own, self.view.arguments.shard_argument(self.placement), known)
        of_all = [Part(slice(0, total), self.view.full_tensor), share]
        if self.view.arguments.smallest(self.placement) < FEWEST:  # nothing to leave out: it is the share that lacks the others
            return any(self._of_ranks(of_all)) or (others_code and self._flow_together())
        tried = alone[:1] if others_code else alone
        of_ranks = self._of_ranks([share, *map(self._part, tried)])
        if not any(of_ranks) and (others_code or None in of_ranks):
            of_ranks = self._of_ranks(of_all)
            if others_code and None in of_ranks and not any(of_ranks):  # there is no memory for all of the batch, say
                of_ranks = self._of_ranks([share, *map(self._part, alone[1:])])
        return any(of_ranks) or (others_code and self._flow_together())

    def _flow_together(self) -> bool:
        """Return whether something is made of several samples, in any rank's calls, that makes no difference to them yet. A collective."""
        if any(Exchange.objects(len({flow.number for flow in self.flows}) < 2)):
            self._of_ranks([Part(self.placement.share.loaded, self.view.arguments.shard_argument(self.placement))])
        pairs = ((one, other) for one in self.flows[:1] for other in self.flows if other.number != one.number)
        found = next((one.mixes(other, differs) for one, other in pairs), None)
        return any(Exchange.objects(found is not None))

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
    """Return whether there is code in `model` that is not PyTorch's own."""
    return any(isinstance(module, torch.jit.ScriptModule) for module in modules_in(model)) or model_uses(model, lambda *_: True)


def left_alone(model: nn.Module, number: int, *, others_code: bool) -> tuple[slice, ...]:
    """Return which of `number` samples are put through `model` without the others, one slice at a time; none where samples cannot mix."""
    if not others_code and not any(isinstance(module, _ALONG_A_DIM) for module in modules_in(model)):
        return ()
    few = FEW if number > FEW else 1
    if others_code or number < FEW + 2:
        return slice(0, few), slice(number - few, number)
    start = (number - few) // 2
    return (slice(start, start + few),)


def normalizes_parts(model: nn.Module) -> bool:
    """Return whether a module in `model` may give its BatchNorm parts of the batch one by one, as many for a share as for all of it."""
    for module in modules_in(model):
        if any(layer in module.children() for layer in layers_taking_statistics(module)):
            own = [value for kind in type(module).__mro__ for value in vars(kind).values()]
            if any(code_uses(value, lambda _, names: not _PARTS.isdisjoint(names)) for value in own):
                return True
    return False


def scales_tables(model: nn.Module) -> bool:
    """Return whether tables in `model` scale the rows that are looked up, in place (``max_norm``): a rank has those of its samples only."""
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None for module in modules_in(model))


def mixes_later(model: nn.Module) -> bool:
    """Return whether the code of `model` may begin to make something of several samples where a number says so (``if self.calls > 9:``)."""
    texts: dict[str, list[ast.AST]] = {}

    def note(code: CodeType, _names: set[str]) -> bool:
        if (text := _text_of(code)) is not None:
            texts.setdefault(code.co_name, []).append(text)
        return False

    called = set()
    for kind, module in {type(module): module for module in modules_in(model)}.items():
        call_uses(module.forward, note)
        own = _text_of(getattr(module.forward, "__code__", None))
        if own is not None and mixes(own):
            called |= {name.rpartition(".")[2] for name, part in model.named_modules() if type(part) is kind} - {""}
    called |= {name for name, of_name in texts.items() if any(map(mixes, of_name))} - {"forward"}
    return any(mixes_by_number(text, called) for of_name in texts.values() for text in of_name)


@lru_cache(maxsize=512)
def _text_of(code: CodeType | None) -> ast.AST | None:
    if code is None or not is_users(code.co_filename):
        return None
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(original_code(code) or code)))
    except (OSError, SyntaxError, TypeError):  # no text, or a part of one
        return None


def shows_itself(model: nn.Module, drawing: GlobalSampling | None, sites: SampleSites | None) -> bool:
    """Return whether the results of a call are those that the same samples come to again when :func:`depends_across_samples` calls `model`.

    Parameters
    ----------
    model : nn.Module
    drawing : GlobalSampling, optional
        What it has drawn in that call; ``None``: it has not been watched.
    sites : SampleSites, optional
        As in :func:`depends_across_samples`.
    """
    if drawing is None or drawing.per_rank or (drawing.drawn and sites is None):
        return False
    # In evaluation PyTorch's layers compute in other ways where nobody takes gradients.
    as_is = not torch.is_grad_enabled() or all(module.training for module in modules_in(model))
    return as_is and not layers_taking_statistics(model)


@contextmanager
def at_the_end(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` at the end of the ``with`` block if nothing has been raised."""
    yield
    tell()
