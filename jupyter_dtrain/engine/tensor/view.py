"""The two sides of a batch: global in the cell, the rank's part inside a model.

Where a batch enters the cell it is placed, where it enters a model it is the rank's plain tensor, and what leaves the
model is placed again. Between them `rules` keep account. At the end everything that the cell holds becomes whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
import torch._functorch.apis as functorch_apis
import torch._functorch.eager_transforms as eager_transforms
from torch import nn
from torch.utils import _pytree as pytree

from ...system.patches import patched
from .autograd_function import OwnFunctions
from .compile import as_written
from .constructors import watched_constructors
from .grad_hooks import GradientHooks
from .materialize import materialize
from .ops.autograd import read_gradients_followed
from .ops.dispatch import Rules
from .ops.operands import at
from .ops.table import REFUSING, TABLE
from .placement_types import GlobalTensor, Partial, Shard, along, from_local, is_row, place_result, to_local
from .recompute import checked_by_parts
from .redistribute import Exchange, was_exchanged
from .scalar_args import numbers_read

TRANSFORMS = (
    (functorch_apis, "vmap_impl"),
    (eager_transforms, "grad_impl"),
    (eager_transforms, "grad_and_value_impl"),
    (eager_transforms, "_vjp_with_argnums"),
    (eager_transforms, "_jvp_with_argnums"),
    (eager_transforms, "_autograd_grad"),  # of what `vjp` has returned, which the cell gives gradients
)

_NO_TENSORS = (type(None), torch.dtype, torch.device)
"""What a model may return beside tensors. A number or a text may be of the share: its samples, a count of some, a mean as a float."""

_APPLY = torch.autograd.Function.__dict__["apply"]  # a class method of Python's, or since PyTorch 2.15 of C++'s


class NeedsFullBatch(Exception):
    """A model's result is not one row per sample."""


class _Unrelated(Exception):
    """It cannot be told which part of a model's argument goes with the rank's part of another."""


class GlobalView:
    """The cell's view of what spans the ranks, for the time of one run.

    Parameters
    ----------
    rank, world_size : int
    count_targets : bool
        Whether losses count the targets that they do not ignore in every batch.
    on_whole : callable
        Told the name of an operation that was computed on whole tensors for want of a rule.
    exchange : Exchange, optional
        By default with the other ranks.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        count_targets: bool = False,
        on_whole: Callable[[str], None],
        exchange: Exchange | None = None,
    ) -> None:
        self._world_size = world_size
        self._exchange = exchange or Exchange()
        self._rules = Rules(TABLE, self._exchange, rank, world_size, on_whole, REFUSING, count_targets=count_targets)
        self._hooks = GradientHooks(self._rules)
        self.functions = OwnFunctions(self._rules)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let operations on global tensors follow this view's rules."""
        with ExitStack() as stack:
            stack.enter_context(as_written())
            stack.enter_context(checked_by_parts())
            stack.enter_context(watched_constructors(self._rules.full_tensor))
            stack.enter_context(numbers_read(self._rules.full_tensor))
            stack.enter_context(self._hooks.installed())
            stack.enter_context(patched(GlobalTensor, "dispatch", staticmethod(self._rules.dispatch), create=True))
            for module, name in TRANSFORMS:
                if hasattr(module, name):
                    stack.enter_context(patched(module, name, self._of_wholes(getattr(module, name))))
            stack.enter_context(patched(torch.autograd.Function, "apply", classmethod(self._own_functions())))
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return what the view has learned of the cell's batches."""
        return {"without_ignored": dict(self._rules.without_ignored), "count_targets": self._rules.count_targets}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self._rules.without_ignored = dict(state["without_ignored"])
        self._rules.count_targets |= state["count_targets"]

    def _own_functions(self) -> Callable[..., Any]:
        """Return what runs functions of the user's own: their backward passes get what PyTorch's engine hands them, plain tensors."""

        @wraps(getattr(_APPLY, "__func__", _APPLY))
        def apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            if any(isinstance(arg, GlobalTensor) for arg in args):
                self._rules.on_whole(function.__name__)
                args = self._rules.full_tensor(args)
            result = _APPLY.__get__(None, function)(*args, **kwargs)
            self.functions.see(function, args, result)
            return result

        return apply

    def _of_wholes(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` (of functorch, below ``__torch_function__``) so that it gets whole tensors."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._rules.full_tensor(args), self._rules.full_tensor(kwargs)
            with self._rules.in_transform():
                return function(*args, **kwargs)

        return called

    # -- at the door of a model -------------------------------------------------------------------------------------

    @property
    def has_parts(self) -> bool:
        """Whether anything that spans the ranks has been computed with."""
        return self._rules.used

    def enter(self, values: Any) -> tuple[Any, Shard | None]:
        """Return a model's arguments as the rank's own, and the placement of the first one that spans the ranks.

        Of what spans the ranks as ``(B, …)`` the model gets ``(b, …)``. A tensor that the cell has made for the batch (noise, a first
        hidden state ``(layers, B, H)``, times of a diffusion) is cut to match, if one of its first two dims has the size ``B``. Where it
        cannot be told how the arguments belong together, all are whole.
        """
        args, kwargs = values
        if self._rules.transforms:
            return pytree.tree_map(self._rules.full_tensor, values), None
        if len(args) == 1 and not kwargs and type(args[0]) is GlobalTensor and isinstance(args[0].placement, Shard):
            return ((self._own(args[0], args[0].placement),), kwargs), args[0].placement
        leaves, tree = pytree.tree_flatten(values)
        shards = [value.placement for value in leaves if isinstance(value, GlobalTensor) and isinstance(value.placement, Shard)]
        if not shards:
            return pytree.tree_unflatten([self._rules.full_tensor(value) for value in leaves], tree), None
        placement = shards[0]
        try:
            if any(other.share != placement.share for other in shards):
                raise _Unrelated
            own = [self._own(value, placement) for value in leaves]
        except _Unrelated:
            return pytree.tree_unflatten([self._rules.full_tensor(value) for value in leaves], tree), None
        return pytree.tree_unflatten(own, tree), placement

    def _own(self, value: Any, placement: Shard) -> Any:
        if isinstance(value, GlobalTensor):
            self._rules.used = True
            self._rules.take_back(value)
            of_batch = isinstance(value.placement, Shard) and value.placement.share == placement.share  # `enter` lets no others through
            return to_local(value) if of_batch else self._rules.full_tensor(value)
        if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
            return value
        dims = [dim for dim, size in enumerate(value.shape) if size == placement.share.total]
        if len(dims) > 1 or (dims and placement.share.total == 1):  # of a single sample nothing is told by sizes
            raise _Unrelated
        return value[at(dims[0], placement.share.loaded)] if dims and dims[0] < 2 else value

    def smallest(self, placement: Shard) -> int:
        """Return the number of samples of the rank that has fewest."""
        return min(placement.share.sizes)

    def shard_argument(self, placement: Shard) -> Callable[[Any], Any]:
        """Return what makes of an argument of a model what :meth:`enter` does."""

        def convert(value: Any) -> Any:
            try:
                return self._own(value, placement)
            except _Unrelated:  # it is in an object among the arguments
                return value

        return convert

    def add_sample(self, placement: Shard) -> Callable[[Any], Any]:
        """Return what makes of an argument of a model what :meth:`enter` does, with one sample more.

        It is the last one again: a batch that is sorted, by lengths for ``pack_padded_sequence``, is so still.
        """
        return self._changed(placement, lambda own, dim, unit: torch.cat([own, own.narrow(dim, own.shape[dim] - unit, unit)], dim))

    def some(self, placement: Shard, samples: slice) -> Callable[[Any], Any]:
        """Return what makes of an argument of a model what :meth:`enter` does, with some of the rank's samples alone."""
        number = samples.stop - samples.start
        return self._changed(placement, lambda own, dim, unit: own.narrow(dim, samples.start * unit, number * unit))

    def _changed(self, placement: Shard, change: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Callable[[Any], Any]:
        def convert(value: Any) -> Any:
            own = self._own(value, placement)
            if isinstance(value, GlobalTensor) and isinstance(value.placement, Shard):
                return change(own, value.placement.dim, value.placement.unit)
            if isinstance(value, torch.Tensor) and own is not value:
                return change(own, next(d for d in range(2) if value.shape[d] != own.shape[d]), 1)
            return own

        return convert

    def leave(
        self,
        values: Any,
        placement: Shard,
        *,
        known: dict[Any, list[int | None]],
        batch_dims: dict[int, int],
        one_more: Callable[[], Any],
        on_new: Callable[[], None],
    ) -> Any:
        """Return a model's results, of arguments placed as `placement`, with their own placements.

        A result ``(b, …)``, or with the samples along another dim as an RNN's state ``(layers, b, H)``, becomes a shard along that dim.

        Parameters
        ----------
        known : dict
            What was found about this model's results before; filled here.
        batch_dims : dict of int to int
            Dim of the samples in results of which it is known, by their ``id``.
        one_more : callable
            Returns the results with one sample more; asked for where two dims have the size of the batch.
        on_new : callable
            Called before all ranks look at results of a structure that is not `known`.

        Raises
        ------
        NeedsFullBatch
            There is something in it that has no row per sample: a loss, a statistic, an object, a number that goes by the samples.
        """
        if type(values) is torch.Tensor and (dims := known.get((placement, (values.dim(),)))) and dims[0] is not None:
            return from_local(values, along(dims[0], placement))
        leaves, tree = pytree.tree_flatten(values)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, GlobalTensor | nn.Parameter)]
        if any(not isinstance(leaf, (torch.Tensor, *_NO_TENSORS)) for leaf in leaves):
            on_new()
            raise NeedsFullBatch
        key = (placement, tuple(tensor.dim() for tensor in tensors))
        if key not in known:
            on_new()
            known[key] = self._dims(tensors, str(tree), placement, batch_dims, one_more)
        if None in known[key]:
            raise NeedsFullBatch
        found = iter([dim for dim in known[key] if dim is not None])

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, GlobalTensor | nn.Parameter):
                return leaf
            return place_result(leaf, along(next(found), placement))

        return pytree.tree_unflatten([convert(leaf) for leaf in leaves], tree)

    def _dims(
        self, tensors: list[torch.Tensor], structure: str, placement: Shard, batch_dims: dict[int, int], one_more: Callable[[], Any]
    ) -> list[int | None]:
        """Return along which dim each result has a row per sample, as all ranks see it; ``None``: along none."""
        rows = [max(size, 1) for size in placement.share.sizes]
        answers = Exchange.objects((structure, [tuple(tensor.shape) for tensor in tensors]))
        shapes = [shapes_of_rank for _, shapes_of_rank in answers]
        if any(other != structure for other, _ in answers):  # a tensor for each sample, or each class that there is
            return [None] * max(len(tensors), 1)
        found: list[list[int]] = []
        for index, tensor in enumerate(tensors):
            of_ranks = [shapes_of_rank[index] for shapes_of_rank in shapes]
            hint = batch_dims.get(id(tensor))
            wanted = range(tensor.dim()) if hint is None else [hint]
            found.append([dim for dim in wanted if is_row(dim, of_ranks, rows, placement)])
        # With as many rows on each rank, a dim of something else (heads, classes) may have that size by chance.
        by_chance = len(set(rows)) == 1 and [dims[:1] for dims in found] != [[placement.dim]]
        doubted = [
            len(dims) > 1 or (by_chance and len(dims) == 1 and id(tensor) not in batch_dims)
            for dims, tensor in zip(found, tensors, strict=True)
        ]
        if any(doubted):
            more = [
                leaf for leaf in pytree.tree_leaves(one_more()) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)
            ]
            shapes = Exchange.objects([tuple(tensor.shape) for tensor in more])
            rows = [size + 1 for size in rows]
            for index, dims in enumerate(found):
                if doubted[index]:
                    of_ranks = [shapes_of_rank[index] for shapes_of_rank in shapes if index < len(shapes_of_rank)]
                    found[index] = [dim for dim in dims if len(of_ranks) == len(rows) and is_row(dim, of_ranks, rows, placement)]
        return [dims[0] if len(dims) == 1 else None for dims in found]

    def full_tensor(self, value: Any) -> Any:
        """Return `value` with the global tensors in it whole."""
        return self._rules.full_tensor(value)

    def kept(self, module: nn.Module, name: str, tensor: GlobalTensor) -> torch.Tensor:
        """Return what attribute `name` of `module` is to hold if the user's code sets it to `tensor`: parameters and buffers are whole."""
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(self.full_tensor(tensor).detach(), tensor.requires_grad)
        return self.full_tensor(tensor) if name in module.__dict__.get("_buffers", {}) else tensor

    # -- at the root of a graph --------------------------------------------------------------------------------------

    def weight_of(self, root: torch.Tensor) -> float:
        """Return what a rank's part of `root` counts in the value of the whole: ``b / B`` of a mean over the batch, 1 of a sum."""
        if not isinstance(root, GlobalTensor):
            return 1.0 / self._world_size
        if isinstance(root.placement, Partial) and root.placement.weight is not None:
            return root.placement.weight
        return 1.0 if not isinstance(root.placement, Shard) or root.placement.counts else 0.0

    def grad(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original` (``torch.autograd.grad``), which does not see by itself that a number was computed from the ranks' parts."""
        outputs = args[0] if args else kwargs.get("outputs")
        roots = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs or ())
        if any(isinstance(leaf, GlobalTensor) for leaf in pytree.tree_leaves((args, kwargs))) or was_exchanged(roots):
            return self._rules.dispatch(original, args, kwargs)
        return original(*args, **kwargs)

    def in_pass(self) -> AbstractContextManager[None]:
        """Return what a backward pass runs within."""
        return read_gradients_followed(self._rules) if self._rules.read_gradients else nullcontext()

    def register_hook(self, original: Callable[..., Any], tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        """Run `original` (``Tensor.register_hook``) for a hook that is to see, and may change, the gradient of the global batch."""
        return self._hooks.register(original, tensor, hook)

    # -- at the end ----------------------------------------------------------------------------------------------------

    def materialize(self, values: Sequence[Any], *, unchanged: Iterable[object]) -> list[Any]:
        """Return `values` with everything in them that spans the ranks whole. Every rank calls it on the same things.

        Objects in `unchanged` hold nothing new: a data set of millions of items is not looked through.
        """
        return materialize(values, unchanged=unchanged, whole=self._rules.full_tensor)
