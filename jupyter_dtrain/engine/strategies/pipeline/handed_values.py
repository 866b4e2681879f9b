"""Splits the arguments and results of a stage into tensors and a tree with slots for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_SIMPLE = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.Size)


class NotSent(Exception):
    """A value is not a tree of plain tensors and numbers, or a module has an effect that its caller's rank would not see."""


class WritesToInputs(NotSent):
    """A module has written to the tensors that it was given, so that this rank cannot call it once more."""

    def error(self) -> RuntimeError:
        """Return the error that the cell gets."""
        return RuntimeError(f"`--strategy pipeline` cannot follow a change in a module's code path: {self}. Use `--strategy zero3`.")


class Slot(NamedTuple):
    """Stands for a tensor in a tree."""

    number: int


class Given(NamedTuple):
    """Stands for a tensor of the arguments, which a result contains as it is."""

    number: int


def taken_apart(value: Any, tensors: list[torch.Tensor], given: Sequence[torch.Tensor] = ()) -> Any:
    """Return `value` with a slot for each tensor, and append the tensors to `tensors`, each once.

    Those that are in `given` are not appended: a result that is an argument (a bias that blocks hand on) stays that argument.

    Raises
    ------
    NotSent
        The value contains an object that cannot be sent, or a tensor with hooks, on another device or of another layout.
    """
    kind = type(value)
    if kind is torch.Tensor:
        for place, known in ((Given, given), (Slot, tensors)):
            number = next((number for number, one in enumerate(known) if one is value), None)
            if number is not None:
                return place(number)
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_inference() or value.is_quantized:
            raise NotSent("a tensor is of another kind than usual")
        if value._backward_hooks or value.retains_grad:
            raise NotSent("a tensor has hooks")
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if kind in _SIMPLE:
        return value
    if kind is tuple or kind is list:
        return kind(taken_apart(one, tensors, given) for one in value)
    if kind is dict and all(type(key) in _SIMPLE for key in value):
        return {key: taken_apart(one, tensors, given) for key, one in value.items()}
    raise NotSent(f"a `{kind.__name__}` is handed on")


def joined(tree: Any, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor] = ()) -> Any:
    """Return the value that :func:`taken_apart` has split."""
    if isinstance(tree, Slot | Given):
        return (tensors if isinstance(tree, Slot) else given)[tree.number]
    if type(tree) in (tuple, list):
        return type(tree)(joined(one, tensors, given) for one in tree)
    if type(tree) is dict:
        return {key: joined(one, tensors, given) for key, one in tree.items()}
    return tree
