"""Numbers over the batch where PyTorch takes plain ones: a size, a dim, a count, a factor (``torch.randperm(mask.sum())``, ``alpha=loss``).

A tensor without dims may stand there, and PyTorch reads its memory without asking anybody: of a number over the batch, the rank's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch

from .placements import GlobalTensor, Partial

_PLAIN = frozenset({bool, int, float, str, type(None)})  # a list of a million numbers is not walked through in Python
_ONLY_KEYWORDS = 99
# Of these no ``__torch_function__`` is asked for the sake of such a number; it may be any argument from a place on.
_UNANNOUNCED: tuple[tuple[Any, str, int], ...] = (
    (torch, "arange bincount eye full full_like narrow randint randperm topk", 0),
    (torch.Tensor, "narrow new_full topk", 1),
    (torch.Tensor, "add_ addcdiv_ addcmul_ sub_", _ONLY_KEYWORDS),
)


def read_numbers(
    args: tuple[Any, ...], kwargs: dict[str, Any], whole: Callable[[Any], Any], *, first: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with the numbers over the batch in them whole; of `args` those from `first` on. A collective if there are any."""
    if not _has_numbers(args[first:]) and not (kwargs and _has_numbers(kwargs.values())):
        return args, kwargs
    return (*args[:first], *(_read(arg, whole) for arg in args[first:])), {key: _read(value, whole) for key, value in kwargs.items()}


@contextmanager
def numbers_read(whole: Callable[[Any], Any]) -> Iterator[None]:
    """Let functions that take plain numbers see those over the batch, until the end of the ``with`` block.

    Parameters
    ----------
    whole : callable
        Returns a value with the global tensors in it whole.
    """

    def reading(original: Callable[..., Any], first: int) -> Callable[..., Any]:
        @wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = read_numbers(args, kwargs, whole, first=first)
            return original(*args, **kwargs)

        return function

    with ExitStack() as stack:
        for owner, names, first in _UNANNOUNCED:
            for name in names.split():
                stack.enter_context(mock.patch.object(owner, name, reading(getattr(owner, name), first)))
        yield


def _has_numbers(values: Iterable[Any]) -> bool:
    """Return whether there are numbers over the batch among `values`."""
    for value in values:
        if type(value) is GlobalTensor:
            if _is_number(value):
                return True
        elif type(value) in (tuple, list):
            if not _PLAIN.issuperset(map(type, value)) and _has_numbers(value):
                return True
        elif type(value) is slice and _has_numbers((value.start, value.stop, value.step)):
            return True
    return False


def _is_number(tensor: GlobalTensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return isinstance(tensor.placement, Partial) and not tensor.dim()


def _read(value: Any, whole: Callable[[Any], Any]) -> Any:
    if type(value) is GlobalTensor:
        if not _is_number(value):
            return value
        number = whole(value)
        return number if number.is_floating_point() or number.is_complex() or number.dtype == torch.bool else int(number)
    if type(value) in (tuple, list) and _has_numbers(value):
        return type(value)(_read(item, whole) for item in value)
    if type(value) is slice and _has_numbers((value,)):
        return slice(*(_read(item, whole) for item in (value.start, value.stop, value.step)))
    return value
