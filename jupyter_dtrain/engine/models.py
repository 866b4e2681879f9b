"""The moment when the cell enters a model.

Calls of modules that have parameters are noticed where they enter the outermost one: there the rank's random stream
begins, there its view of the batch narrows to its share, and there a model that the cell has just made becomes known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from .global_view import GlobalView
from .placements import Shard
from .randomness import ModelStream


class ModelCalls:
    """Surrounds calls of models while it is installed.

    Parameters
    ----------
    on_first_call : callable
        Told of each module with parameters when it is first entered from the cell.
    stream : ModelStream, optional
        Random stream inside models; ``None`` where the cell's own is used.
    view : GlobalView, optional
        Turns global tensors into the rank's own at the door; ``None`` where the cell sees the rank's own anyway.
    """

    def __init__(self, *, on_first_call: Callable[[nn.Module], None], stream: ModelStream | None, view: GlobalView | None) -> None:
        self._on_first_call = on_first_call
        self._view = view
        self._stream = stream
        self._is_model: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        self._made: WeakSet[nn.Module] = WeakSet()
        self._inside = False

    def know(self, module: nn.Module) -> None:
        """Count `module` as a model from now on."""
        self._is_model[module] = True
        self._on_first_call(module)

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the module's own call, as the cell's call of a model if it is one."""
        if self._inside or not self._models(module):
            return original(module, *args, **kwargs)
        placement: Shard | None = None
        if self._view is not None:
            (args, kwargs), placement = self._view.enter((args, kwargs))
        # On whole inputs all ranks compute the same, and must draw the same.
        stream = self._stream if self._view is None or placement is not None else None
        self._inside = True
        if stream is not None:
            stream.switch()
        try:
            result = original(module, *args, **kwargs)
        finally:
            if stream is not None:
                stream.switch()
            self._inside = False
        return result if self._view is None or placement is None else self._view.leave(result, placement)

    def made(self, module: nn.Module) -> None:
        """Note that `module` is being made now."""
        self._made.add(module)

    def training(self) -> bool:
        """Return whether gradients are on and a module with trainable parameters is in training mode."""
        return torch.is_grad_enabled() and any(
            module.training and any(p.requires_grad for p in module.parameters())
            for module in (*(m for m, is_model in self._is_model.items() if is_model), *self._made)
        )

    def _models(self, module: nn.Module) -> bool:
        known = self._is_model.get(module)
        if known is None:
            known = next(module.parameters(), None) is not None
            if known:
                self.know(module)
            else:
                self._is_model[module] = False
        return known


def outermost(objects: Iterable[object]) -> list[nn.Module]:
    """Return the modules with parameters among `objects` that are part of no other one."""
    modules = [obj for obj in objects if isinstance(obj, nn.Module) and next(obj.parameters(), None) is not None]
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]
