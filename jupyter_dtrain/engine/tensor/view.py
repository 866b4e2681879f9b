"""The two sides of a batch: global in the cell, the rank's part inside a model.

Where a batch enters the cell it is placed, where it enters a model it is the rank's plain tensor, and what leaves the
model is placed again. Between them `rules` keep account. At the end everything that the cell holds becomes whole.
"""

from __future__ import annotations

import weakref
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
from .autograd_function import OwnFunctions, current_apply
from .compile import as_written
from .constructors import watched_constructors
from .functional_collectives import was_exchanged
from .grad_hooks import GradientHooks
from .materialize import materialize
from .model_io import ModelArguments
from .ops.autograd import read_gradients_followed
from .ops.dispatch import Rules
from .ops.table import ON_PARTS, REFUSING, RESHAPING, TABLE
from .placement_types import GlobalTensor, Partial, Shard
from .recompute import checked_by_parts
from .redistribute import Exchange
from .scalar_args import numbers_read

TRANSFORMS = (
    (functorch_apis, "vmap_impl"),
    (eager_transforms, "grad_impl"),
    (eager_transforms, "grad_and_value_impl"),
    (eager_transforms, "_vjp_with_argnums"),
    (eager_transforms, "_jvp_with_argnums"),
    (eager_transforms, "_autograd_grad"),  # of what `vjp` has returned, which the cell gives gradients
)

_APPLY = current_apply()


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
        self._rules = Rules(
            TABLE,
            self._exchange,
            rank,
            world_size,
            on_whole,
            REFUSING,
            count_targets=count_targets,
            on_parts=ON_PARTS,
            reshaping=RESHAPING,
        )
        self._hooks = GradientHooks(self._rules)
        self.functions = OwnFunctions(self._rules)
        self.arguments = ModelArguments(self._rules)

    def know_all_ranks(self, num_ranks: int) -> None:
        """Know how many ranks the run has, which are more than those over which batches are sharded: other tensors may span all of them."""
        self._rules.num_all = num_ranks

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

        @wraps(_APPLY)
        def apply(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            if any(isinstance(arg, GlobalTensor) for arg in args):
                self._rules.on_whole(function.__name__)
                args = self._rules.full_tensor(args)
            result = _APPLY(function, *args, **kwargs)
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

    @property
    def has_parts(self) -> bool:
        """Whether anything that spans the ranks has been computed with."""
        return self._rules.used

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
        """Return what a backward pass runs within, that begins now."""
        self._rules.take_back_lent()
        followed = self._rules.read_gradients or self._rules.retaining
        return read_gradients_followed(self._rules) if followed else nullcontext()

    def retains(self, tensor: torch.Tensor) -> None:
        """Note that the cell has `tensor`, which all ranks have, retain its gradient: that is to be of the global batch."""
        if not tensor.is_leaf:
            self._rules.retaining.append(weakref.ref(tensor))

    def register_hook(self, original: Callable[..., Any], tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        """Run `original` (``Tensor.register_hook``) for a hook that is to see, and may change, the gradient of the global batch."""
        return self._hooks.register(original, tensor, hook)

    # -- at the end ----------------------------------------------------------------------------------------------------

    def materialize(self, values: Sequence[Any], *, unchanged: Iterable[object]) -> list[Any]:
        """Return `values` with everything in them that spans the ranks whole. Every rank calls it on the same things.

        Objects in `unchanged` hold nothing new: a data set of millions of items is not looked through.
        """
        return materialize(values, unchanged=unchanged, whole=self._rules.full_tensor)
