"""Functions with a backward pass of their own (``torch.autograd.Function``): it is to be of the gradient of the global batch.

On its way a gradient is a rank's part of it, and larger by a factor (`gradients` averages over ranks at the end). What is linear in the
gradient, as derivatives are, may be computed of that. A backward pass that clips, rounds or divides by a norm may not. Whether one does
is looked for in its code; there

- what every rank has computed alike (in the cell, in an open model, of parameters) is given the sum of the ranks' parts, one exchange;
- rows of a share in a model are given their own gradient without the factor, which takes none. Where the function may let rows depend
  on each other, or it cannot be told whether these are rows, the model is opened.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from types import CodeType
from typing import Any

import torch
from torch import nn

from ...analysis.code_objects import everything, original_code
from ..code_inspection import TORCH, code_uses
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
_LINEAR = (*TORCH, f"{__name__.partition('.')[0]}.")
_OVER_ROWS = frozenset("cumsum mean nanmean nansum sum".split())  # noqa: SIM905

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Met:
    """What a call of a model has met of such functions on a rank.

    Attributes
    ----------
    refused : bool
        One that must not be computed on a share.
    sums : list of float
        Of what was taken for rows of the share, in a first call.
    """

    refused: bool = False
    sums: list[float] = field(default_factory=list)


def must_be_whole(of_ranks: Sequence[Met]) -> bool:
    """Return whether a model must not be called on shares. What is the same on all ranks are no rows."""
    return any(met.refused for met in of_ranks) or any(len(set(sums)) == 1 for sums in zip(*(met.sums for met in of_ranks), strict=False))


class OwnFunctions:
    """Backward passes of a run's own functions.

    Attributes
    ----------
    met : Met
        Since the last call of :meth:`enter`.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._placement: Shard | None = None
        self._is_first = False
        self.met = Met()

    def enter(self, placement: Shard, *, is_first: bool) -> None:
        """Begin a call of a model on the rank's share, its first or another."""
        self._placement, self._is_first, self.met = placement, is_first, Met()

    def leave(self) -> None:
        """End it."""
        self._placement = None

    def see(self, function: type[torch.autograd.Function], args: Sequence[Any], result: Any) -> None:
        """Look at a call of `function`, which has returned `result`."""
        words = _bends(function)
        if not words or self._rules.world_size == 1 or torch._C._current_graph_task_id() != -1:  # a model computes activations again
            return
        outputs = (result,) if isinstance(result, torch.Tensor) else result if isinstance(result, tuple) else ()
        kind: Any = function
        node = next((o.grad_fn for o in outputs if isinstance(o, torch.Tensor) and isinstance(o.grad_fn, kind._backward_cls)), None)
        if node is None:
            return
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
        """Change the gradients that a node gets and those that it gives, but where a model takes a gradient in its own forward."""

        def all_of(gradients: tuple[torch.Tensor | None, ...], change: Change) -> tuple[torch.Tensor | None, ...] | None:
            return None if self._placement is not None else tuple(None if g is None else change(g) for g in gradients)

        node.register_prehook(lambda gradients: all_of(gradients, before))
        node.register_hook(lambda gradients, _: all_of(gradients, after))


@lru_cache(maxsize=1024)
def _bends(function: type[torch.autograd.Function]) -> frozenset[str]:
    """Return ``"one"`` if the backward pass of `function` may not be linear in each number of the gradient, ``"several"`` if in several."""
    if f"{function.__module__}.".startswith(_LINEAR):
        return frozenset()
    backward: Any = next((vars(kind)[name] for kind in function.__mro__ for name in ("backward", "vjp") if name in vars(kind)), None)
    found: set[str] = set()

    def has(code: CodeType, names: set[str]) -> bool:
        code = original_code(code) or code  # in loops that can be resumed there are comparisons
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
    """Return whether code compares by size, or takes powers."""
    instructions = [instruction for part in everything(code) for instruction in dis.get_instructions(part)]
    return any(i.opname in ("COMPARE_OP", "BINARY_POWER") or (i.opname == "BINARY_OP" and i.argrepr.startswith("**")) for i in instructions)


def current_apply() -> Callable[..., Any]:
    """Return ``torch.autograd.Function.apply`` as it is now, to be called with the class first.

    It is a class method of Python's, or since PyTorch 2.15 of C++'s.
    """
    found: Any = torch.autograd.Function.__dict__["apply"]
    if isinstance(found, classmethod):
        return found.__func__

    @wraps(found)
    def apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        return found.__get__(None, function)(*args, **kwargs)

    return apply
