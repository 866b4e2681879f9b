"""Tensor and module backward hooks that get, and may change, the gradient of the global batch.

Inside a backward pass a rank has the gradients of its own part. A hook therefore gets a global tensor: the rank's gradient with a
placement, which is exchanged only if the hook reads it. This holds for gradients of global tensors and of replicated tensors that each
rank uses for its part. Hooks of leaf tensors are not handled here: `backward` runs them on the averaged gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as modules_of_torch
from torch.utils.hooks import BackwardHook, RemovableHandle

from ...system.patches import patched
from .ops.autograd import gradient_of, part_of_gradient
from .ops.dispatch import Rules
from .placement_types import GlobalTensor, Placement, from_local, source_of, to_local

Hook = Callable[[torch.Tensor], torch.Tensor | None]


class GradientHooks:
    """Gives the hooks of one run the gradients of the global batch.

    Parameters
    ----------
    rules : Rules
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Call full backward hooks of modules that are given global tensors with global gradients, until the end of the ``with`` block."""
        rules = self._rules

        class OfGlobalBatch(BackwardHook):
            """PyTorch's ``BackwardHook``, for arguments that may be global tensors."""

            def _apply_on_tensors(self, fn: Callable[[Any], None], args: Any) -> Any:
                placements = [_placement_of(arg) for arg in args if isinstance(arg, torch.Tensor)]
                parts = [to_local(arg) if isinstance(arg, GlobalTensor) else arg for arg in args]
                made, indices = super()._apply_on_tensors(  # type: ignore[no-untyped-call]
                    lambda node: fn(_Node(node, placements, rules)), tuple(parts) if type(args) is tuple else type(args)(*parts)
                )
                if indices is None:
                    return args, None
                places = dict(zip(indices, placements, strict=True))
                placed = [tensor if places.get(i) is None else from_local(tensor, places[i]) for i, tensor in enumerate(made)]
                return (tuple(placed) if type(made) is tuple else type(made)(*placed)), indices

        with patched(modules_of_torch, "BackwardHook", OfGlobalBatch):
            yield

    def register(self, original: Callable[..., RemovableHandle], tensor: torch.Tensor, hook: Hook) -> RemovableHandle:
        """Register a hook of the cell.

        Parameters
        ----------
        original : callable
            ``Tensor.register_hook``.
        tensor : Tensor
        hook : callable
            Gets the gradient of the global batch. A leaf that every rank has keeps PyTorch's own hook.

        Returns
        -------
        RemovableHandle
        """
        with torch._C.DisableTorchFunctionSubclass():
            if not isinstance(tensor, GlobalTensor) and tensor.is_leaf:
                return original(tensor, hook)
            placement, rules = _placement_of(tensor), self._rules

            def of_global(gradient: torch.Tensor) -> torch.Tensor | None:
                with torch._C._EnableTorchFunction():  # a rule that started the backward pass has disabled it
                    changed = hook(gradient_of(rules, gradient, placement))
                    return None if changed is None else part_of_gradient(rules, changed, placement)

            return original(source_of(tensor), of_global)


class _Node:
    """A node of the autograd graph, given to PyTorch's ``BackwardHook`` in place of `node`, that converts gradients for its hooks."""

    def __init__(self, node: Any, placements: Sequence[Placement | None], rules: Rules) -> None:
        self._node, self._placements, self._rules = node, placements, rules

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Register `hook` on the node so that it gets the gradients of the global batch."""

        def of_global(*given: tuple[torch.Tensor | None, ...]) -> Any:
            wholes = [[self._full_gradient(*both) for both in zip(some, self._placements, strict=True)] for some in given]
            # A gradient that the hook returns unchanged is passed on without conversion.
            own = {id(whole): part for some, parts in zip(wholes, given, strict=True) for whole, part in zip(some, parts, strict=True)}
            with torch._C._EnableTorchFunction():
                changed = hook(*map(tuple, wholes))
                if changed is None:
                    return None
                return tuple(
                    own[id(gradient)] if id(gradient) in own else part_of_gradient(self._rules, gradient, placement)
                    for gradient, placement in zip(changed, self._placements, strict=True)
                )

        handle: RemovableHandle = self._node.register_hook(of_global)
        return handle

    def _full_gradient(self, gradient: torch.Tensor | None, placement: Placement | None) -> GlobalTensor | None:
        return None if gradient is None else gradient_of(self._rules, gradient, placement)


def _placement_of(tensor: torch.Tensor) -> Placement | None:
    return tensor.placement if isinstance(tensor, GlobalTensor) else None
