"""The global view of one run: tensors are global in the cell and shards inside a model.

A batch that enters the cell becomes a global tensor. A model gets the rank's plain tensor, and its results become global tensors again.
In the cell, the rules (`ops`) run operations on the parts. At the end of the cell, all tensors that it holds become full tensors.
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
    (eager_transforms, "_autograd_grad"),  # called by the function that `vjp` returns, with the cell's gradients
)

_APPLY = current_apply()


class GlobalView:
    """The global view of one run.

    Parameters
    ----------
    rank, world_size : int
    count_targets : bool
        Whether losses count the targets that are not ignored in every batch, which takes an exchange.
    on_whole : callable
        Called with the name of an operation that has no rule and runs on full tensors.
    exchange : Exchange, optional
        By default one with the other ranks.
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
        """Set the number of ranks of the run, if batches are sharded over fewer. Other tensors may be sharded over all ranks."""
        self._rules.num_all = num_ranks

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Run operations on global tensors by this view's rules until the end of the ``with`` block."""
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
        """Return what the view has learned about ignored targets."""
        return {"without_ignored": dict(self._rules.without_ignored), "count_targets": self._rules.count_targets}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._rules.without_ignored = dict(state["without_ignored"])
        self._rules.count_targets |= state["count_targets"]

    def _own_functions(self) -> Callable[..., Any]:
        """Return the replacement of ``torch.autograd.Function.apply``: it runs on full tensors, as ``backward`` gets plain gradients."""

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
        """Return `function` (of functorch, which calls no ``__torch_function__``) so that it gets full tensors."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._rules.full_tensor(args), self._rules.full_tensor(kwargs)
            with self._rules.in_transform():
                return function(*args, **kwargs)

        return called

    @property
    def has_parts(self) -> bool:
        """Whether an operation or a model has used a global tensor."""
        return self._rules.used

    def full_tensor(self, value: Any) -> Any:
        """Return `value` with each global tensor in it replaced by its full tensor. A collective, unless all are cached."""
        return self._rules.full_tensor(value)

    def kept(self, module: nn.Module, name: str, tensor: GlobalTensor) -> torch.Tensor:
        """Return the value to store when the user's code sets attribute `name` of `module` to `tensor`: full for parameters and buffers."""
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(self.full_tensor(tensor).detach(), tensor.requires_grad)
        return self.full_tensor(tensor) if name in module.__dict__.get("_buffers", {}) else tensor

    # -- at the root of a graph --------------------------------------------------------------------------------------

    def weight_of(self, root: torch.Tensor) -> float:
        """Return the weight of the rank's part of `root` in its value: ``b / B`` of a mean over the batch, 1 of a sum."""
        if not isinstance(root, GlobalTensor):
            return 1.0 / self._world_size
        if isinstance(root.placement, Partial) and root.placement.weight is not None:
            return root.placement.weight
        return 1.0 if not isinstance(root.placement, Shard) or root.placement.counts else 0.0

    def grad(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original` (``torch.autograd.grad``), by its rule if an argument is a global tensor or the graph has a collective."""
        outputs = args[0] if args else kwargs.get("outputs")
        roots = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs or ())
        if any(isinstance(leaf, GlobalTensor) for leaf in pytree.tree_leaves((args, kwargs))) or was_exchanged(roots):
            return self._rules.dispatch(original, args, kwargs)
        return original(*args, **kwargs)

    def in_pass(self) -> AbstractContextManager[None]:
        """Return the context for a backward pass that starts now."""
        self._rules.take_back_lent()
        followed = self._rules.read_gradients or self._rules.retaining
        return read_gradients_followed(self._rules) if followed else nullcontext()

    def retains(self, tensor: torch.Tensor) -> None:
        """Record that the cell lets the replicated `tensor` retain its gradient: it is to be the gradient of the global batch."""
        if not tensor.is_leaf:
            self._rules.retaining.append(weakref.ref(tensor))

    def register_hook(self, original: Callable[..., Any], tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
        """Register `hook` by `original` (``Tensor.register_hook``) so that it gets, and may change, the gradient of the global batch."""
        return self._hooks.register(original, tensor, hook)

    # -- at the end ----------------------------------------------------------------------------------------------------

    def materialize(
        self, values: Sequence[Any], *, unchanged: Iterable[object], known: Iterable[tuple[GlobalTensor, torch.Tensor | None]] = ()
    ) -> list[Any]:
        """Return `values` with full tensors in place of global ones. A collective: every rank passes the same structure.

        Objects in `unchanged` are not searched, as they hold nothing new: a data set may have millions of items. `known` are global tensors
        with what there is in their place.
        """
        return materialize(values, unchanged=unchanged, whole=self._rules.full_tensor, known=known)
