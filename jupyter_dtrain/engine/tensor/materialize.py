"""Replace global tensors by full tensors, wherever the cell's values hold them: in containers, tables, attributes and gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ...serialization.cut_graphs import is_leaf, without_graph
from ...serialization.item_restore import is_frame
from ...serialization.python_reducers import SlotValues, attribute_holders
from ...system.interpreter import deep_recursion
from .graph_placement import computed_by
from .placement_types import GlobalTensor

# Which objects are worth a look for tensors in their attributes.

_NO_HOLDERS = frozenset(("numpy", "pandas", "matplotlib", "sklearn", "builtins", "functools", "IPython", "jupyter_dtrain"))

_ITEMS = frozenset((str, bytes, int, float, bool, type(None)))  # of a long array, which hold no tensors


def attributes_worth_a_look(value: Any) -> list[dict[str, Any] | SlotValues]:
    """Return the dicts and slots that hold the attributes of `value`; empty for types that are known to hold no global tensors."""
    module = type(value).__module__
    if callable(value) and not isinstance(value, nn.Module):
        worth = module == "__main__"
    else:
        worth = module.partition(".")[0] not in _NO_HOLDERS
    return attribute_holders(value) if worth else []


def materialize(
    values: Sequence[Any],
    *,
    unchanged: Iterable[object],
    whole: Callable[[Any], Any],
    known: Iterable[tuple[GlobalTensor, torch.Tensor | None]] = (),
) -> list[Any]:
    """Return `values` with each global tensor in them replaced by its full tensor.

    Lists, dicts, arrays and tables of objects, and attributes of objects are changed in place, so that all references see the change.
    Tuples are made anew.

    Parameters
    ----------
    values : sequence
    unchanged : iterable of object
        Objects that are not searched; of a tensor among them the gradient is replaced.
    whole : callable
        Returns the full tensor of a global one. A collective.
    known : iterable of tuple of GlobalTensor and Tensor, optional
        Global tensors and what there is in their place: gradients, which parameters have already.
    """
    settling = _Settling(whole, known)
    for obj in unchanged:
        settling.pass_over(obj)
    with deep_recursion():
        return [settling.of(value) for value in values]


class _Settling:
    def __init__(self, whole: Callable[[Any], Any], known: Iterable[tuple[Any, Any]]) -> None:
        self._whole = whole
        # By id: the value, which keeps its id valid, and its replacement.
        self._seen: dict[int, tuple[Any, Any]] = {id(value): (value, found) for value, found in known}

    def pass_over(self, obj: object) -> None:
        self._seen[id(obj)] = obj, obj
        if isinstance(obj, torch.Tensor):
            self._settle_gradient(obj)

    def of(self, value: Any) -> Any:
        seen = self._seen
        if id(value) in seen:
            return seen[id(value)][1]
        if isinstance(value, GlobalTensor):
            whole = self._whole(value).detach()
            gradient = self.of(value.grad) if (value.is_leaf or value.retains_grad) and value.grad is not None else None
            if value.grad_fn is not None:
                whole = without_graph(whole, gradient, computed_by(value.grad_fn))
            else:
                whole.requires_grad_(value.requires_grad).grad = gradient
            seen[id(value)] = value, whole
            return whole
        if isinstance(value, torch.Tensor):
            self._settle_gradient(value)
            return value
        if isinstance(value, type | str | bytes | int | float):
            return value
        seen[id(value)] = value, value
        if isinstance(value, list | deque):
            for index, item in enumerate([*value]):  # a copy, as another thread of the cell may change the list
                new = self.of(item)
                if new is not item:
                    value[index] = new
        elif isinstance(value, dict | SlotValues):
            for key, item in list(value.items()):
                new = self.of(item)
                if new is not item:
                    value[key] = new
        elif isinstance(value, tuple):
            items = [self.of(item) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                result = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
                seen[id(value)] = value, result
                return result
        elif isinstance(value, np.ndarray):
            self._settle_array(value)
        elif is_frame(value):
            for block in value._mgr.blocks:
                self.of(block.values)
        else:
            for attributes in attributes_worth_a_look(value):
                self.of(attributes)  # of a module also `_buffers` and `_modules`
        return value

    def _settle_array(self, array: np.ndarray[Any, Any]) -> None:
        """Replace the items of an array of objects; one of texts or numbers, which may be long, is only looked at for their types."""
        if array.dtype != object or _ITEMS.issuperset(set(map(type, array.flat))):
            return
        if not array.flags.writeable and isinstance(array.base, np.ndarray):  # pandas gives out its arrays as views like this one
            self.of(array.base)
            return
        for place in np.ndindex(array.shape):
            item = array[place]
            new = self.of(item)
            if new is not item:
                array[place] = new

    def _settle_gradient(self, tensor: torch.Tensor) -> None:
        # Set by the cell to a result of `torch.autograd.grad`, or retained by what all ranks have made of parameters.
        if (is_leaf(tensor) or tensor.retains_grad) and isinstance(tensor.grad, GlobalTensor):
            tensor.grad = self.of(tensor.grad)
