"""Global tensors: the rank's part of a tensor that spans the ranks, with its placement.

The cell's code sees the global batch, the model sees the rank's shard. A batch of a sharded loader, and everything that the cell computes
from it, is a :class:`GlobalTensor`: the rank's part as an ordinary tensor, with a *placement* as in ``torch.distributed.tensor``. `Shard`:
the part is a slice along a dim. `Partial`: the value is the sum or the weighted mean of the parts. A plain tensor is replicated: equal on
every rank. The shape is the global one. Operations run on the parts (`ops`), and a collective runs only when a value is read
(`redistribute`).

DTensor is not used: for operations that cells do every day (a product with a plain tensor, a mask, `float(loss)`) it raises or, worse,
silently returns the value of one rank. docs/global-view.md has the comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd import forward_ad

from .batch_shard import BatchShard
from .tensor_type import LikeTensor
from .view_calls import ViewCall


@dataclass(frozen=True)
class Shard:
    """The rank's part is a slice along `dim`.

    Attributes
    ----------
    dim : int
        Non-negative.
    share : BatchShard
        The rank's samples.
    unit : int
        Entries along `dim` per sample: 1 for a batch, the sequence length once batch and time are flattened into one dim.
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
        """The slice of the global dim that the part holds; for an empty shard one sample's entries, which do not count."""
        part = self.share.loaded
        return slice(part.start * self.unit, part.stop * self.unit)

    @property
    def counts(self) -> bool:
        """Whether the part counts: ``False`` for the sample that stands in for an empty shard."""
        return self.share.num_samples > 0


@dataclass(frozen=True)
class Partial:
    """The value is the sum or the weighted mean of the ranks' parts.

    Attributes
    ----------
    weight : float, optional
        ``None``: the value is the sum of the parts. Otherwise it is the sum of the parts, each times its rank's weight. The weights of
        all ranks sum to 1.
    total : int
        Samples of the batch that the weights refer to. Weights for two batches may be equal on one rank only: `total` makes the
        placements differ on all ranks.
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


class Origin(NamedTuple):
    """The root tensor whose storage a tensor shares, and the views that lead to it."""

    root: GlobalTensor  # an alias that the cell does not hold, so that only its values can change
    views: tuple[ViewCall, ...]  # applied to a tensor of the root's shape, they give this tensor's shape


class KeptFull(NamedTuple):
    """A cached full tensor."""

    version: int  # of the part when it was gathered
    tensor: torch.Tensor
    full_version: int  # of `tensor` at that time: a later one means that the cell has written into it


@dataclass(slots=True)
class GlobalState:
    """Metadata and caches of one global tensor.

    Each cached value belongs to one version of the rank's part and is invalid once the part has another version.

    Attributes
    ----------
    placement : Placement
    full : KeptFull, optional
        The full tensor, in the global shape. Tensors that share a storage use the one of their `origin`.
    origin : Origin, optional
        For a shard: the root whose storage it shares. Set at the first read or view.
    base : Origin, optional
        For a view that requires gradients: the shard in the cell's graph that it is a view of.
    value : tuple of int and torch.Tensor, optional
        A version, and the value without its graph, if all ranks got it by another exchange.
    deferred : tuple of int and DeferredReduction, optional
        A version, and the pending computation of the value.
    source : tuple of torch.Tensor and Node, optional
        For a model's result: the plain tensor, and the node of this tensor in the graph.
    is_lent : bool
        Whether the cell has got the full tensor as a NumPy array, or a view of it: writes to these bump no version.
    """

    placement: Placement
    full: KeptFull | None = None
    origin: Origin | None = None
    base: Origin | None = None
    value: tuple[int, torch.Tensor] | None = None
    deferred: tuple[int, Any] | None = None  # `Any`, as `deferred` imports this module
    source: tuple[torch.Tensor, torch.autograd.graph.Node | None] | None = None
    is_lent: bool = False


class GlobalTensor(torch.Tensor, metaclass=LikeTensor):
    """A rank's part of a tensor that spans the ranks; made by :func:`from_local`. Its metadata is in `_state`.

    The class attribute `dispatch` runs operations on global tensors while a run has a global view.
    """

    _state: GlobalState
    dispatch: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = staticmethod(_without_run)

    @property
    def placement(self) -> Placement:
        """How the global tensor is divided over the ranks."""
        return self._state.placement

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation that has a global tensor among its operands."""
        return GlobalTensor.dispatch(func, args, kwargs or {})


GlobalTensor.__name__ = torch.Tensor.__name__  # in messages of Python's own errors too; pickles go by `__qualname__`


def from_local(part: torch.Tensor, placement: Placement) -> GlobalTensor:
    """Return a global tensor with `part` as the rank's part. Its autograd graph is kept.

    Parameters
    ----------
    part : Tensor
        For a `Shard` along dim 0: ``(b, …)``; for a `Partial`: in the shape of the value.
    placement : Placement

    Returns
    -------
    GlobalTensor
        For the cell ``(B, …)``, or in the shape of the value.
    """
    result: GlobalTensor = part.as_subclass(GlobalTensor)
    result._state = GlobalState(placement)
    return result


def place_result(value: torch.Tensor, placement: Placement) -> GlobalTensor:
    """Return a model's result as :func:`from_local` does, and keep `value` as its source: other results may be computed from `value`."""
    result = from_local(value, placement)
    if value.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():
            result._state.source = value, result.grad_fn
        if value.is_leaf:
            value.__dict__["_of_share"] = True
    return result


def source_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that has the gradient of `tensor`: for a model's result the plain tensor, one node before it in the graph."""
    if not isinstance(tensor, GlobalTensor) or tensor._state.source is None:
        return tensor
    source, node = tensor._state.source
    with torch._C.DisableTorchFunctionSubclass():
        return source if node is None or tensor.grad_fn is node else tensor  # else it was changed in place


def is_followed(tensor: torch.Tensor) -> bool:
    """Return whether autograd records operations on `tensor`, in reverse or forward mode."""
    return tensor.requires_grad or forward_ad._current_level >= 0


def along(dim: int, placement: Shard) -> Shard:
    """Return the placement of a model's result that has the samples of `placement` along `dim`."""
    unit = placement.unit if dim == 0 and placement.dim == 0 else 1
    return placement if (dim, unit) == (placement.dim, placement.unit) else Shard(dim, placement.share, unit)


def is_row(dim: int, shapes: list[tuple[int, ...]], rows: list[int], placement: Shard) -> bool:
    """Return whether dim `dim` of a tensor with such `shapes` on the ranks has the ranks' `rows`, and all other dims are equal."""
    if dim >= len(shapes[0]):
        return False
    unit = placement.unit if dim == 0 and placement.dim == 0 else 1
    rest = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    return len(rest) == 1 and all(shape[dim] == size * unit for shape, size in zip(shapes, rows, strict=True))


def is_of_share(leaf: torch.Tensor) -> bool:
    """Return whether a leaf tensor is a model's result, which the model has made for the samples of its shard."""
    return "_of_share" in leaf.__dict__


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's part, detached: ``(b, …)`` of a shard."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the rank's part as a plain tensor, ``(b, …)`` of a shard. Its autograd graph is kept."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)
