"""The class of parameters on which ranks step locally: accessing one returns what all ranks have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ..zero3.parameter import ASKS_FOR_NO_NUMBERS, FollowedParameter, name_of
from ..zero3.sharded_rows import quiet

_ENGINE = Path(__file__).parents[2]
_OWN = tuple(str(_ENGINE / folder) for folder in ("forward", "backward"))


class LocalParameter(FollowedParameter):
    """A parameter that intercepts operations started from Python. While a run steps locally, its class attribute `looked` runs them."""

    looked: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None] = None

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation with such a parameter among its operands."""
        asker = sys._getframe(1).f_code.co_filename
        if cls.looked is None or name_of(func)[0] in ASKS_FOR_NO_NUMBERS or asker.startswith(_OWN):
            with quiet():  # the engine's own code accesses the rank's tensors
                return func(*args, **(kwargs or {}))
        return cls.looked(func, args, kwargs or {})


LocalParameter.__name__ = LocalParameter.__qualname__ = "Parameter"


@contextmanager
def plain(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Change the class of `parameters` to PyTorch's, so that nothing is intercepted, until the end of the ``with`` block."""
    changed: list[Any] = [parameter for parameter in parameters if type(parameter) is LocalParameter]
    for parameter in changed:
        parameter.__class__ = nn.Parameter
    try:
        yield
    finally:
        if LocalParameter.looked is not None:  # otherwise the cell has ended meanwhile
            for parameter in changed:
                parameter.__class__ = LocalParameter


def local_parameters_in(values: Iterable[Any], found: dict[int, LocalParameter]) -> dict[int, LocalParameter]:
    """Add to `found` the parameters of this class in `values`, by their ``id``, and return it."""
    for value in values:
        if type(value) is LocalParameter:
            found[id(value)] = value
        elif isinstance(value, list | tuple):
            local_parameters_in(value, found)
        elif isinstance(value, dict):
            local_parameters_in(value.values(), found)
    return found
