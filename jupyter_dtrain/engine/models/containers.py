"""Lists, dicts and sets that a model's attributes hold: a call fills them in place, which no attribute tells of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...capture.slots import SlotValues

_KINDS = (list, dict, set, deque)
MAPPINGS = (dict, SlotValues)
_OWN = frozenset(vars(nn.Module()))  # what PyTorch keeps of each module
_DEPTH, _MOST = 3, 100_000


class Containers:
    """Those of a model as they are now, but for very large ones."""

    def __init__(self, model: nn.Module) -> None:
        self._copies: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._look((value for name, value in vars(module).items() if name not in _OWN), seen, _DEPTH)

    def _look(self, values: Iterable[Any], seen: set[int], depth: int) -> None:
        for value in values:
            if isinstance(value, _KINDS) and id(value) not in seen and len(value) <= _MOST:
                seen.add(id(value))
                self._copies.append((value, copy_of(value)))
                if depth > 1:
                    self._look(list(value.values()) if isinstance(value, dict) else list(value), seen, depth - 1)

    def filled(self) -> list[Any]:
        """Return those that hold something else now."""
        return [value for value, copy in self._copies if not is_same(value, copy)]

    def restore(self) -> None:
        """Let all hold what they held."""
        for value, copy in self._copies:
            refill(value, copy)


def contents(containers: Iterable[Any]) -> list[Any]:
    """Return what is in containers, to be compared with what is in them at another time."""
    return [list(value.items()) if isinstance(value, dict) else value.copy() for value in containers]


def hold_tensors(containers: Iterable[Any]) -> bool:
    """Return whether there is a tensor in one of `containers`."""
    return any(
        isinstance(leaf, torch.Tensor)
        for value in containers
        for leaf in pytree.tree_leaves(list(value.values()) if isinstance(value, dict) else list(value))
    )


def copy_of(holder: Any) -> Any:
    """Return a copy of what is in a list, a dict, a set or what holds attributes, to be given to the functions below."""
    return dict(holder) if isinstance(holder, MAPPINGS) else set(holder) if isinstance(holder, set) else list(holder)


def is_same(holder: Any, copy: Any) -> bool:
    """Return whether `holder` holds the very things that are in `copy`."""
    if len(holder) != len(copy):
        return False
    if isinstance(holder, MAPPINGS):
        return all(key in copy and copy[key] is value for key, value in holder.items())
    return bool(holder == copy) if isinstance(holder, set) else all(left is right for left, right in zip(holder, copy, strict=True))


def refill(holder: Any, copy: Any) -> None:
    """Let `holder` hold what is in `copy`, if it does not."""
    if not is_same(holder, copy):
        holder.clear()
        (holder.extend if isinstance(holder, list | deque) else holder.update)(copy)
