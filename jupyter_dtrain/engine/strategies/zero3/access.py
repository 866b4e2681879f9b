"""Operations of the cell on sharded parameters: each is intercepted, and gathers the parameters that it reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn
from torch._functorch import eager_transforms
from torch.nested._internal.nested_tensor import NestedTensor

from ....system.patches import patched
from ...comm.transforms import in_transform, outside_transforms
from ...tensor.autograd_function import current_apply
from ...tensor.placement_types import GlobalTensor, Shard
from ...tensor.view import TRANSFORMS
from ...user_frames import is_users
from .checkpointed import kept_as_they_are
from .parameter import GRADIENT, Zero3Parameter, name_of
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore
from .scripted import scripted_whole
from .sharded_rows import quiet

MOST_WRITTEN = 1 << 26
"""Bytes of parameters that may stay full because the cell has written to them, until the ranks reach a common place."""

SHARE_MEMORY = frozenset(
    """
    data detach view view_as reshape __getitem__ numpy __array__ untyped_storage storage data_ptr T mT H t transpose permute expand
    narrow select squeeze unsqueeze flatten ravel unbind split chunk as_strided unfold diagonal movedim swapaxes contiguous to cpu float
    double alias_copy expand_as real __dlpack__ type requires_grad_ detach_ tensor_split
    """.split()  # noqa: SIM905
)

_BY_TRANSFORM = "torch.func computes with them"
PARAMETER_TRANSFORMS = (*TRANSFORMS, (eager_transforms, "_wrap_all_tensors_to_functional"))


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


PAST_PYTHON: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch, "tensor", _as_it_is),
    (torch.Tensor, "as_subclass", _as_it_is),
    (torch.Tensor, "_make_subclass", staticmethod),
    (torch.Tensor, "set_", _as_it_is),
    (torch._C.ScriptFunction, "__call__", _as_it_is),
    (NestedTensor, "__torch_function__", staticmethod),  # asked before a parameter's, and asks none
)
"""Functions that get parameters without ``__torch_function__``: owner, name, and how the owner holds them."""


class ParameterAccess:
    """Intercepts operations of the cell on the parameters of `store`."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store

    def _touched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on parameters."""
        found = list(self._store.shards_in((args, kwargs), {}).values())
        name, access = name_of(func)
        if not self._store.depth:
            self._make_room(found)
            if in_transform() and torch.is_grad_enabled():
                # A graph that is made there keeps the parameters themselves, whatever hooks there are for what graphs keep.
                with outside_transforms():
                    self._store.replicate([shard.parameter for shard in found], _BY_TRANSFORM)
                return func(*args, **kwargs)
        with self._store.in_use(found):
            if len(found) == 1 and access and name == "data":
                if access == "__get__":
                    return found[0].data()
                result = func(*args, **kwargs)
                self._store.follow_moved(found)
                return result
            if name in SHARE_MEMORY:
                for shard in found:
                    shard.is_lent = True
            with self._store.followed():
                result = func(*args, **kwargs)
            self._store.follow_moved(found)
            if name.startswith("_fused_"):
                for shard in found:
                    shard.mark_written()
            return result

    def _make_room(self, needed: Sequence[ParameterShard]) -> None:
        self._store.sweep(keep=needed)
        if sum(shard.nbytes for shard in self._store.now_whole() if shard.is_written()) > MOST_WRITTEN:
            self._store.sync()

    def _gradient(self, func: Any, access: str, parameter: nn.Parameter, *value: Any) -> Any:
        shard = self._store.shard_of(parameter)
        if shard is None:
            with quiet():
                return func(parameter, *value)
        if access == "__get__":
            return shard.read_gradient()
        new = value[0] if access == "__set__" else None
        if isinstance(new, GlobalTensor) and new is not shard.read_gradient() and not shard.has_rows_of(new):
            new = self._store.full_tensor(new)  # with the graph that it may have
        shard.set_gradient(new)
        return None

    @contextmanager
    def installed(self, full_tensor: Callable[[Any], Any]) -> Iterator[None]:
        """Gather parameters where operations use them, in the ``with`` block.

        Parameters
        ----------
        full_tensor : callable
            Returns a tensor that spans the ranks as a whole.
        """
        self._store.full_tensor = full_tensor
        rules = GlobalTensor.dispatch

        def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._store.shards_in((args, kwargs), {}):
                return self._touched(Named(func, rules), args, kwargs)
            return rules(func, args, kwargs)

        with ExitStack() as stack:
            stack.enter_context(patched(GlobalTensor, "dispatch", staticmethod(dispatch)))
            stack.enter_context(patched(Zero3Parameter, "touched", self._touched))
            stack.enter_context(patched(Zero3Parameter, "gradient", self._gradient, create=True))
            for name in GRADIENT:
                stack.enter_context(patched(torch.Tensor, name, _Gradient(name, full_tensor)))
            stack.enter_context(patched(torch.overrides, "has_torch_function", _but_parameters(torch.overrides.has_torch_function)))
            for module, name in PARAMETER_TRANSFORMS:
                if hasattr(module, name):
                    stack.enter_context(patched(module, name, self._transform(getattr(module, name))))
            for owner, name, kind in PAST_PYTHON:
                stack.enter_context(patched(owner, name, kind(self._whole_for(getattr(owner, name)))))
            for name in ("DisableTorchFunction", "DisableTorchFunctionSubclass"):
                stack.enter_context(patched(torch._C, name, _not_in_the_cell(getattr(torch._C, name), self._store.strategy)))
            stack.enter_context(kept_as_they_are(self._store))
            stack.enter_context(scripted_whole(self._store))
            stack.enter_context(patched(torch.autograd.Function, "apply", classmethod(self._own_function())))
            yield

    def _transform(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function` (of torch.func, below ``__torch_function__``) so that its parameters are full, and stay so."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            found = self._store.shards_in((args, kwargs), {})
            self._store.replicate([shard.parameter for shard in found.values()], _BY_TRANSFORM)
            return function(*args, **kwargs)

        return called

    def _own_function(self) -> Callable[..., Any]:
        """Wrap what runs the user's own functions, to which PyTorch passes parameters without ``__torch_function__``."""
        return self._whole_for(current_apply())

    def _whole_for(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function`, which reads parameters without ``__torch_function__``, so that they are full."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            found = list(self._store.shards_in((args, kwargs), {}).values())
            if not found:
                return function(*args, **kwargs)
            for shard in found:
                shard.is_lent = True
            with self._store.in_use(found), self._store.followed():
                result = function(*args, **kwargs)
            self._store.follow_moved(found)
            return result

        return called


class _Gradient:
    """``Tensor.grad`` or ``_grad``, by which a tensor that is not sharded gets a sharded gradient as a full tensor.

    An example are weights in float32 beside those of the model. PyTorch would compare the size of this rank's rows, and asks only the
    tensor for its ``__torch_function__``, not the gradient.
    """

    def __init__(self, name: str, full_tensor: Callable[[Any], Any]) -> None:
        self._original: Any = getattr(torch.Tensor, name)
        self._full_tensor = full_tensor

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        return self._original if tensor is None else self._original.__get__(tensor)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        is_sharded = isinstance(value, GlobalTensor) and isinstance(value.placement, Shard)
        # Where operations are not intercepted it is this project that sets a gradient: that of the rank's part of a batch.
        if is_sharded and not isinstance(tensor, GlobalTensor | Zero3Parameter) and torch._C._is_torch_function_enabled():
            value = self._full_tensor(value)
        self._original.__set__(tensor, value)

    def __delete__(self, tensor: torch.Tensor) -> None:
        self._original.__delete__(tensor)


def _but_parameters(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Hide sharded parameters from ``has_torch_function``: with plain ones, encoders in evaluation take the path that skips padding."""

    @wraps(original)
    def has_torch_function(values: Any) -> bool:
        return original([value for value in values if not isinstance(value, Zero3Parameter)])

    return has_torch_function


def _not_in_the_cell(original: Any, strategy: str) -> Callable[[], Any]:
    """Refuse the user's code to switch off ``__torch_function__``: it would read parameters that are not gathered."""
    of_user = cache(is_users)

    def disabled() -> Any:
        if of_user(sys._getframe(1).f_code.co_filename):
            raise RuntimeError(
                f"`torch._C.{original.__name__}` hides reads of parameters from `--strategy {strategy}`. Use `--strategy auto`."
            )
        return original()

    return disabled


class Named:
    """An operation that the rules of global tensors run."""

    def __init__(self, func: Any, rules: Callable[..., Any]) -> None:
        self._func, self._rules = func, rules
        self.__name__ = str(getattr(func, "__name__", ""))
        if hasattr(func, "__self__"):
            self.__self__ = func.__self__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self._rules(self._func, args, kwargs)
