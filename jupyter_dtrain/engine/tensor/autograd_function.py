"""Give user-defined ``torch.autograd.Function`` backward passes the gradient of the global batch.

Within a backward pass each rank has its own part of a gradient, scaled by a factor (`backward.gradient_sync` averages over ranks at the
leaves). A ``backward`` that is linear in the gradient may use that. One that clips, rounds or divides by a norm may not. The code of
``backward`` is inspected for such operations. If it has some,

- a value that every rank has computed alike (in the cell, in an open model, from parameters) gets the sum over the ranks: one all-reduce;
- rows of a shard in a model get their own gradient without the factor, which needs no exchange. If the function may mix rows, or its
  inputs may be no rows, the model is opened.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import CodeType
from typing import Any

import torch
from torch import nn

from ...analysis.code_objects import everything, original_code
from ..code_inspection import OWN, TORCH, code_uses
from ..identity_map import cached_by_class
from .functional_collectives import nothing_of
from .ops.dispatch import Rules
from .placement_types import Shard
from .redistribute import Exchange

_OF_ONE_NUMBER = frozenset(
    """
    abs absolute all any bernoulli ceil clamp clamp_max clamp_min clip copysign dropout eq erf floor fmod fix frac ge gt hardshrink
    hardsigmoid hardtanh heaviside isfinite isinf isnan item le log log1p logical_and logical_not logical_or lt nan_to_num ne numpy pow
    relu relu6 remainder round rsqrt sgn sigmoid sign signbit softplus softshrink sqrt square tanh threshold tolist trunc
    """.split()  # noqa: SIM905
)
_OF_SEVERAL = frozenset(
    """
    amax amin aminmax argmax argmin argsort cdist clip_grad_norm_ cosine_similarity kthvalue layer_norm logsumexp max maximum median
    min minimum mode norm normalize quantile softmax sort std svd topk unique var vector_norm
    """.split()  # noqa: SIM905
)
_LINEAR = (*TORCH, OWN)
_OVER_ROWS = frozenset("cumsum mean nanmean nansum sum".split())  # noqa: SIM905

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Met:
    """User-defined functions that a model's call has run on a rank.

    Attributes
    ----------
    refused : bool
        Whether one of them must not be computed on a shard.
    bends : bool
        Whether the backward pass of one of them is not linear.
    sums : list of float
        Sums of the inputs that were taken for rows of the shard. Recorded in a model's first call only.
    """

    refused: bool = False
    bends: bool = False
    sums: list[float] = field(default_factory=list)


def must_be_whole(of_ranks: Sequence[Met]) -> bool:
    """Return whether a model must be called on the full batch. Inputs whose sums are equal on all ranks are no rows of a shard."""
    return any(met.refused for met in of_ranks) or any(len(set(sums)) == 1 for sums in zip(*(met.sums for met in of_ranks), strict=False))


class OwnFunctions:
    """Adapts the gradients of user-defined autograd functions during a run.

    Parameters
    ----------
    rules : Rules

    Attributes
    ----------
    met : Met
        Functions seen since the last call of :meth:`enter`.
    num_bent : int
        How many with a backward pass that is not linear have been seen.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._placement: Shard | None = None
        self._is_first = False
        self.met = Met()
        self.num_bent = 0

    def enter(self, placement: Shard, *, is_first: bool) -> None:
        """Begin a call of a model on the rank's shard; `is_first`: its first call."""
        self._placement, self._is_first, self.met = placement, is_first, Met()

    def leave(self) -> None:
        """End the model's call."""
        self._placement = None

    def see(self, function: type[torch.autograd.Function], args: Sequence[Any], result: Any) -> None:
        """Register gradient hooks on the node that `function` has just made, if its ``backward`` is not linear.

        Parameters
        ----------
        function : subclass of torch.autograd.Function
        args : sequence
            The arguments that it was called with.
        result : Tensor or tuple
            What it has returned.
        """
        words = _bends(function)
        if not words or self._rules.world_size == 1 or torch._C._current_graph_task_id() != -1:  # recomputed in a backward pass
            return
        outputs = (result,) if isinstance(result, torch.Tensor) else result if isinstance(result, tuple) else ()
        kind: Any = function
        node = next((o.grad_fn for o in outputs if isinstance(o, torch.Tensor) and isinstance(o.grad_fn, kind._backward_cls)), None)
        if node is None:
            return
        self.met.bends = True
        self.num_bent += 1
        placement = self._placement
        inputs = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point()]
        if placement is None or all(isinstance(arg, nn.Parameter) for arg in inputs):
            self._of_sum(node)
        elif "several" in words or not all(self._may_be_rows(arg, placement) for arg in inputs):
            self.met.refused = True
        else:
            if self._is_first:
                self.met.sums += [arg.detach().double().sum().item() for arg in inputs]
            self._of_rows(node, counts=placement.counts)

    @staticmethod
    def _may_be_rows(tensor: torch.Tensor, placement: Shard) -> bool:
        own = placement.loaded.stop - placement.loaded.start
        return not isinstance(tensor, nn.Parameter) and tensor.dim() > 0 and tensor.shape[0] == own

    def _of_sum(self, node: Any) -> None:
        rules = self._rules
        self._change(
            node,
            before=lambda gradient: Exchange.sum(gradient.contiguous()) / rules.gradient_scale,
            after=lambda gradient: gradient * (rules.gradient_scale / rules.world_size),
        )

    def _of_rows(self, node: Any, *, counts: bool) -> None:
        rules = self._rules
        self._change(
            node,
            before=lambda gradient: gradient / rules.gradient_scale,
            after=lambda gradient: gradient * rules.gradient_scale if counts else nothing_of(gradient),
        )

    def _change(self, node: Any, *, before: Change, after: Change) -> None:
        """Change the gradients that enter and leave `node`, unless a model's ``forward`` runs the backward pass itself."""

        def all_of(gradients: tuple[torch.Tensor | None, ...], change: Change) -> tuple[torch.Tensor | None, ...] | None:
            return None if self._placement is not None else tuple(None if g is None else change(g) for g in gradients)

        node.register_prehook(lambda gradients: all_of(gradients, before))
        node.register_hook(lambda gradients, _: all_of(gradients, after))


@cached_by_class
def _bends(function: type[torch.autograd.Function]) -> frozenset[str]:
    """Return how ``backward`` of `function` may be non-linear: ``"one"`` (elementwise), with ``"several"`` if it also mixes elements."""
    if f"{function.__module__}.".startswith(_LINEAR):
        return frozenset()
    backward: Any = next((vars(kind)[name] for kind in function.__mro__ for name in ("backward", "vjp") if name in vars(kind)), None)
    found: set[str] = set()

    def has(code: CodeType, names: set[str]) -> bool:
        code = original_code(code) or code  # code rewritten for resumable loops has comparisons of its own
        plain = {name.rstrip("_") for name in names} | names
        if not plain.isdisjoint(_OF_SEVERAL):
            found.update(("one", "several"))
        if not plain.isdisjoint(_OF_ONE_NUMBER) or _compares(code):
            found.add("one")
        if not plain.isdisjoint(_OVER_ROWS):
            found.add("rows")
        return False

    code_uses(backward, has)
    if "one" not in found:
        return frozenset()
    return frozenset({"one", "several"} if {"several", "rows"} & found else {"one"})


def _compares(code: CodeType) -> bool:
    """Return whether code has a comparison or a power operator."""
    instructions = [instruction for part in everything(code) for instruction in dis.get_instructions(part)]
    return any(i.opname in ("COMPARE_OP", "BINARY_POWER") or (i.opname == "BINARY_OP" and i.argrepr.startswith("**")) for i in instructions)


def current_apply() -> Callable[..., Any]:
    """Return the current ``torch.autograd.Function.apply`` as a function that takes the class first.

    It is a Python class method, or since PyTorch 2.15 one in C++.
    """
    found: Any = torch.autograd.Function.__dict__["apply"]
    if isinstance(found, classmethod):
        return found.__func__

    @wraps(found)
    def apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        return found.__get__(None, function)(*args, **kwargs)

    return apply
