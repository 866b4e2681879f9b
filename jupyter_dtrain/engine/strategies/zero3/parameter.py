"""The class of a sharded parameter.

A sharded parameter stays the same object, which optimizers, lists of parameters and hooks of the cell reference. While it is not
gathered it has the class :class:`Zero3Parameter`, which intercepts every operation on it that Python starts, and the memory of a single
NaN, expanded: code that bypasses the class reads NaN, and no plausible values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from .sharded_rows import quiet

ASKS_FOR_NO_NUMBERS = frozenset(
    """
    __hash__ __len__ _backward_hooks _is_view _is_zerotensor _post_accumulate_grad_hooks _version device dim dtype element_size grad_fn
    is_complex is_conj is_cpu is_cuda is_floating_point is_inference is_leaf is_meta is_mkldnn is_mps is_neg is_nested is_quantized
    is_same_size is_signed is_sparse is_xla is_xpu itemsize layout names nbytes ndim nelement numel output_nr register_hook
    register_post_accumulate_grad_hook requires_grad requires_grad_ retain_grad retains_grad shape size
    """.split()  # noqa: SIM905
)

GRADIENT = ("grad", "_grad")
"""The two attributes by which a cell reads and sets a gradient."""


def name_of(func: Any) -> tuple[str, str]:
    """Return the name of a function that ``__torch_function__`` is given, and for an attribute the kind of access."""
    name = getattr(func, "__name__", "")
    return (func.__self__.__name__, name) if name in ("__get__", "__set__", "__delete__") else (name, "")


class FollowedParameter(nn.Parameter):
    """A parameter whose operations are intercepted. Copies of it are plain parameters."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a plain parameter: a copy does not belong to the model."""
        if id(self) not in memo:
            with torch.no_grad():
                copy = nn.Parameter(self.detach().clone(memory_format=torch.preserve_format), self.requires_grad)
            memo[id(self)] = copy
        return memo[id(self)]

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Pickle as a plain parameter."""
        return nn.Parameter, (self.detach().clone(), self.requires_grad)


class Zero3Parameter(FollowedParameter):
    """A parameter that may not be gathered. The class attribute `touched` runs operations on it while a run shards parameters."""

    touched: ClassVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None] = None
    gradient: ClassVar[Callable[..., Any]]

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation with such a parameter among its operands."""
        name, access = name_of(func)
        if cls.touched is not None and access and name in GRADIENT:
            return cls.gradient(func, access, *args)
        if name in ASKS_FOR_NO_NUMBERS:
            with quiet():
                return func(*args, **(kwargs or {}))
        if cls.touched is None:
            raise RuntimeError("The values of this parameter are on other engines, and its cell has ended.")
        return cls.touched(func, args, kwargs or {})


Zero3Parameter.__name__ = Zero3Parameter.__qualname__ = "Parameter"
