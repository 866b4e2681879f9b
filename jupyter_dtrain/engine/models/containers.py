"""Lists, dicts and sets that a model's attributes hold: a call fills them in place, which no attribute tells of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

_KINDS = (list, dict, set, deque)
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
                self._copies.append((value, value.copy()))
                if depth > 1:
                    self._look(list(value.values()) if isinstance(value, dict) else list(value), seen, depth - 1)

    def filled(self) -> list[Any]:
        """Return those that hold something else now."""
        return [value for value, copy in self._copies if not _are_same(value, copy)]

    def restore(self) -> None:
        """Let all hold what they held."""
        for value, copy in self._copies:
            if not _are_same(value, copy):
                value.clear()
                (value.extend if isinstance(value, list | deque) else value.update)(copy)


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


def _are_same(value: Any, copy: Any) -> bool:
    if len(value) != len(copy):
        return False
    if isinstance(value, set):
        return bool(value == copy)
    if isinstance(value, dict):
        return all(key is other and value[key] is copy[other] for key, other in zip(value, copy, strict=True))
    return all(item is other for item, other in zip(value, copy, strict=True))
