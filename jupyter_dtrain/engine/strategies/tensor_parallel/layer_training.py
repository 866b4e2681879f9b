"""``--strategy tensor`` on one rank: its columns of linear layers, connected with what the rank trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from ....system.patches import patched
from ..zero3.access import ParameterAccess
from ..zero3.sharded_training import ShardedTraining
from .layer_gradients import LayerGradients, refuse_parts
from .layers import LayerStore


class LayerAccess(ParameterAccess):
    """Operations of the cell on parameters, of which a linear layer's own is computed by parts."""

    _store: LayerStore

    def _touched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is nn.functional.linear:
            result = self._store.linear(*args, **kwargs) if {*kwargs} <= {"weight", "bias"} else self._store.linear(**_named(args, kwargs))
            if result is not None:
                return result
        return super()._touched(func, args, kwargs)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    rest = dict(kwargs)
    return {"given": rest.pop("input"), **rest} if not args else dict(zip(("given", "weight", "bias"), args, strict=False)) | rest


class LayerTraining(ShardedTraining):
    """The divided layers of what a rank trains, which has whole batches."""

    store_class = LayerStore
    gradients_class = LayerGradients
    access_class = LayerAccess
    store: LayerStore

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take part in what the cell does, until the end of the ``with`` block, within that of the training."""
        with super().installed(), patched(torch.autograd, "grad", self._grad(torch.autograd.grad)):
            yield

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original`, so that it returns gradients within a backward pass too, which leaves none of them."""

        @wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if not self.store.in_pass:
                outputs = args[0] if args else kwargs.get("outputs", ())
                refuse_parts([outputs] if isinstance(outputs, torch.Tensor) else [*outputs])
                self.store.sync()
            before, self.store.collecting = self.store.collecting, frozenset()
            try:
                return original(*args, **kwargs)
            finally:
                self.store.collecting = before

        return grad
