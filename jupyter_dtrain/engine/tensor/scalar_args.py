"""Partial values as scalar arguments: a size, a dim, a count, a factor (``torch.randperm(mask.sum())``, ``alpha=loss``).

PyTorch accepts a 0-dim tensor for such arguments and reads its memory without calling ``__torch_function__``. For a partial value it would
read the rank's part. The functions here therefore get the reduced value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F

from ...system.patches import patched
from .placement_types import GlobalTensor, Partial

_PLAIN = frozenset({bool, int, float, str, type(None)})  # skips long lists of numbers without a loop in Python
_ONLY_KEYWORDS = 99
_LATER = (
    "narrow narrow_copy select select_scatter slice_scatter topk kthvalue roll tril triu multinomial histc renorm as_strided unsafe_split "
    "bincount"
)
_FACTORS = "add sub subtract addbmm addcdiv addcmul addmm addmv addr baddbmm index_add"
_IN_PLACE = "add_ sub_ subtract_ addbmm_ addcdiv_ addcmul_ addmm_ addmv_ addr_ baddbmm_ index_add_"
_SPREADS = "std var repeat_interleave nonzero_static"
# Owner, names, and the first position of scalar arguments, for which these functions call no ``__torch_function__``. PyTorch's parser has
# arguments of type `Scalar` or `SymInt` there and no overload with a tensor. Dims, and sizes of convolutions and pools, are left out.
_UNANNOUNCED: tuple[tuple[Any, str, int], ...] = (
    (torch, "arange range eye full full_like randint randperm scalar_tensor", 0),
    (torch, f"{_LATER} hardshrink threshold threshold_ rrelu rrelu_ celu celu_ constant_pad_nd randint_like gradient", 1),
    (torch, "dist trapezoid cumulative_trapezoid", 2),
    (torch, f"{_FACTORS} {_SPREADS} std_mean var_mean rsub addmv_", _ONLY_KEYWORDS),
    (torch, "_foreach_add _foreach_add_ _foreach_sub _foreach_sub_", _ONLY_KEYWORDS),
    (torch.Tensor, f"{_LATER} hardshrink new_full renorm_ tril_ triu_ fill_diagonal_", 1),
    (torch.Tensor, "dist", 2),
    (torch.Tensor, f"{_FACTORS} {_SPREADS} {_IN_PLACE}", _ONLY_KEYWORDS),
    (torch._C._nn, "elu elu_ hardtanh hardtanh_ leaky_relu leaky_relu_ multi_margin_loss", 1),
    (F, "softplus softshrink hardshrink threshold_ celu_ rrelu_", 1),
    (torch._VF, "threshold threshold_", 1),  # which `F.threshold` calls
    (torch.linalg, "vector_norm matrix_norm norm", 1),
)


def read_numbers(
    args: tuple[Any, ...], kwargs: dict[str, Any], whole: Callable[[Any], Any], *, first: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with 0-dim partial values reduced. A collective if there are any.

    Parameters
    ----------
    args : tuple
    kwargs : dict
    whole : callable
        Returns the full tensor of a global one.
    first : int
        Arguments before this position are returned as they are.
    """
    if not _has_numbers(args[first:]) and not (kwargs and _has_numbers(kwargs.values())):
        return args, kwargs
    return (*args[:first], *(_read(arg, whole) for arg in args[first:])), {key: _read(value, whole) for key, value in kwargs.items()}


@contextmanager
def numbers_read(whole: Callable[[Any], Any]) -> Iterator[None]:
    """Replace functions with scalar arguments by ones that reduce partial values first, until the end of the ``with`` block.

    Parameters
    ----------
    whole : callable
        Returns the full tensor of a global one.
    """

    def reading(original: Callable[..., Any], first: int) -> Callable[..., Any]:
        @wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            # Optimizers call these functions for each parameter; almost always the types alone tell that nothing is to be read.
            if not (_PLAIN.issuperset(map(type, args[first:])) and _PLAIN.issuperset(map(type, kwargs.values()))):
                args, kwargs = read_numbers(args, kwargs, whole, first=first)
            return original(*args, **kwargs)

        return function

    with ExitStack() as stack:
        for owner, names, first in _UNANNOUNCED:
            for name in names.split():
                if (original := getattr(owner, name, None)) is not None:  # this version of PyTorch has it
                    stack.enter_context(patched(owner, name, reading(original, first)))
        yield


def _has_numbers(values: Iterable[Any]) -> bool:
    """Return whether there are 0-dim partial values among `values`, or in tuples, lists and slices among them."""
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
