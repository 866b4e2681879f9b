"""Tensors that know which part of the global batch they hold.

The cell's code is to see the global batch and the model its share. So a batch of a split loader, and everything that the
cell computes from it, is a :class:`GlobalTensor`: the rank's part as an ordinary tensor, with a *placement* in the words
of ``torch.distributed.tensor``. `Shard`: the part is a slice of a dimension. `Partial`: the parts add up to the
value, or their weighted mean is it. A plain tensor is a replicate, the same on every rank. The shape is the global one, operations
stay on the part (`rules`), and a collective runs only when a value is read (`exchange`).

DTensor is not the carrier: it refuses or, worse, silently answers for one rank what cells do every day (a product with a plain
tensor, a mask, `float(loss)`); docs/global-view.md has the comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd import forward_ad

from .batch_shard import BatchShard
from .view_calls import ViewCall


@dataclass(frozen=True)
class Shard:
    """The part is a slice of dimension `dim`.

    Attributes
    ----------
    dim : int
        Counted from 0.
    share : BatchShard
        The rank's samples.
    unit : int
        Entries along `dim` per sample: 1 for a batch, the length of a sequence once batch and time are one dimension.
    """

    dim: int
    share: BatchShard
    unit: int = 1

    @property
    def total(self) -> int:
        """Size of the dimension in the global tensor."""
        return self.share.total * self.unit

    @property
    def loaded(self) -> slice:
        """The entries of the global dimension that the part has (one that does not count where the share is empty)."""
        part = self.share.loaded
        return slice(part.start * self.unit, part.stop * self.unit)

    @property
    def counts(self) -> bool:
        """Whether the part belongs to the rank; ``False`` for the sample that stands in for an empty share."""
        return self.share.num_samples > 0


@dataclass(frozen=True)
class Partial:
    """The ranks' parts together are the value.

    Attributes
    ----------
    weight : float, optional
        ``None``: the value is the sum of the parts. Otherwise it is the sum of the parts times each rank's weight, which add up to 1:
        a weighted mean.
    total : int
        Samples of the batch that the weights are of. Two weights may be alike on one rank and not on another: this tells, on all.
    """

    weight: float | None = None
    total: int = 0

    @classmethod
    def mean(cls, share: BatchShard) -> Partial:
        """Return the placement of a mean over a batch."""
        return cls(share.weight, share.total)


Placement = Shard | Partial


def _without_run(*_: Any) -> Any:
    raise RuntimeError("its shards are on several engines, and the run ended before they were gathered")


class _LikeTensor(type(torch.Tensor)):  # type: ignore[misc]
    """Let the cell's code find ``type(loss) == torch.Tensor``, and print that type, as on one process."""

    __name__ = property(lambda _: torch.Tensor.__name__)  # pickles go by `__qualname__`

    def __eq__(cls, other: object) -> bool:
        return cls is other or other is torch.Tensor

    __hash__ = type.__hash__  # PyTorch keeps the types of operands in sets, where it is to be another one

    def __repr__(cls) -> str:
        return repr(torch.Tensor)


class Origin(NamedTuple):
    """Whose memory a tensor has."""

    root: GlobalTensor  # nobody else's, so that nothing but its numbers changes
    views: tuple[ViewCall, ...]  # what makes of a tensor of its shape one of the shape of this


class KeptFull(NamedTuple):
    """A full tensor that a read has brought."""

    version: int  # of the part that it was made of
    tensor: torch.Tensor
    full_version: int  # of `tensor` then: the cell may write into it since


@dataclass(slots=True)
class GlobalState:
    """What is known of one global tensor.

    Each value is of one version of the rank's part, and counts for nothing once the part has another.

    Attributes
    ----------
    placement : Placement
    full : KeptFull, optional
        The full tensor, of the global shape. Tensors of one memory have that of their `origin`.
    origin : Origin, optional
        Of a shard: the tensor whose memory it has, from the first read or the first view on.
    base : Origin, optional
        Of a view that requires gradients: the shard in the cell's graph that it is a view of.
    value : tuple of int and torch.Tensor, optional
        A version, and the value without its graph, as it has come to all ranks by another way.
    deferred : tuple of int and DeferredReduction, optional
        A version, and how the value will be had.
    source : tuple of torch.Tensor and Node, optional
        Of a result of a model: the plain tensor that it was, and the node of this one in the graph.
    is_lent : bool
        The cell has had the full tensor as an array of NumPy's, or a view of it, by which that may be written to without another version.
    """

    placement: Placement
    full: KeptFull | None = None
    origin: Origin | None = None
    base: Origin | None = None
    value: tuple[int, torch.Tensor] | None = None
    deferred: tuple[int, Any] | None = None  # of a module that is made of these tensors
    source: tuple[torch.Tensor, torch.autograd.graph.Node | None] | None = None
    is_lent: bool = False


class GlobalTensor(torch.Tensor, metaclass=_LikeTensor):
    """A rank's part of a tensor that spans the ranks. Made by :func:`from_local`.

    Its class attribute `dispatch` runs operations on it while a run has a global view. All that is known of a tensor is in `_state`.
    """

    _state: GlobalState
    dispatch: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = staticmethod(_without_run)

    @property
    def placement(self) -> Placement:
        """Which part of the global tensor the rank has."""
        return self._state.placement

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation that one of its operands is a global tensor of."""
        return GlobalTensor.dispatch(func, args, kwargs or {})


def from_local(part: torch.Tensor, placement: Placement) -> GlobalTensor:
    """Return `part` as a rank's part of a global tensor; the graph behind it stays.

    Parameters
    ----------
    part : Tensor
        Of a `Shard` along dim 0 ``(b, …)``; of a `Partial` of the shape of the value.
    placement : Placement

    Returns
    -------
    GlobalTensor
        Which the cell sees as ``(B, …)``, or in the shape of the value.
    """
    result: GlobalTensor = part.as_subclass(GlobalTensor)
    result._state = GlobalState(placement)
    return result


def place_result(value: torch.Tensor, placement: Placement) -> GlobalTensor:
    """Return what :func:`from_local` does, of a result of a model: other results may have been computed from `value` itself."""
    result = from_local(value, placement)
    if value.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            result._state.source = value, result.grad_fn
        if value.is_leaf:
            value.__dict__["_of_share"] = True
    return result


def source_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor whose gradients are those of `tensor`: of a model's result its own, which is a step before it in the graph."""
    if not isinstance(tensor, GlobalTensor) or tensor._state.source is None:
        return tensor
    source, node = tensor._state.source
    with torch._C.DisableTorchFunctionSubclass():
        return source if node is None or tensor.grad_fn is node else tensor  # it was changed in place


def is_followed(tensor: torch.Tensor) -> bool:
    """Return whether gradients are kept of what is computed from `tensor`, backwards or in forward mode."""
    return tensor.requires_grad or forward_ad._current_level >= 0


def along(dim: int, placement: Shard) -> Shard:
    """Return where a model's result is that has the samples of `placement` along `dim`."""
    unit = placement.unit if dim == 0 and placement.dim == 0 else 1
    return placement if (dim, unit) == (placement.dim, placement.unit) else Shard(dim, placement.share, unit)


def is_row(dim: int, shapes: list[tuple[int, ...]], rows: list[int], placement: Shard) -> bool:
    """Return whether dim `dim` of all ranks' parts of a tensor has their rows, and the other dims are the same."""
    if dim >= len(shapes[0]):
        return False
    unit = placement.unit if dim == 0 and placement.dim == 0 else 1
    rest = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    return len(rest) == 1 and all(shape[dim] == size * unit for shape, size in zip(shapes, rows, strict=True))


def is_of_share(leaf: torch.Tensor) -> bool:
    """Return whether a leaf of a graph came out of a model that has made it for the samples of its share."""
    return "_of_share" in leaf.__dict__


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's part as a plain tensor without its graph, ``(b, …)`` of a shard."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's part as a plain tensor, ``(b, …)`` of a shard; the graph behind it stays."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


# Starts: the gradients that the cell gives to a backward pass to begin with, for the rank's part of what it begins at.
