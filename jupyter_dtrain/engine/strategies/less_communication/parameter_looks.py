"""Average local parameters before the cell accesses or modifies them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ....system.patches import patched
from ...tensor.autograd_function import current_apply
from ...tensor.placement_types import GlobalTensor
from ..zero1.partition import Quiet, parameters_of
from ..zero3.access import PARAMETER_TRANSFORMS, PAST_PYTHON, SHARE_MEMORY, Named
from ..zero3.parameter import GRADIENT, name_of
from ..zero3.sharded_rows import quiet
from .local_parameter import LocalParameter, local_parameters_in, plain
from .local_parameters import LocalParameters


class ParameterLooks:
    """Intercept access to parameters outside of model calls and optimizer steps.

    Parameters
    ----------
    parameters : LocalParameters

    Attributes
    ----------
    quiet : Quiet
        Whether access is not the cell's, and is not intercepted.
    """

    def __init__(self, parameters: LocalParameters) -> None:
        self._parameters = parameters
        self._thread = threading.get_ident()
        self.quiet = Quiet()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Intercept access until the end of the ``with`` block; parameters have their original class then."""
        rules = GlobalTensor.dispatch

        def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if local_parameters_in((args, kwargs), {}):
                return self._looked(Named(func, rules), args, kwargs)
            return rules(func, args, kwargs)

        with ExitStack() as stack:
            stack.callback(self.end)
            stack.enter_context(patched(LocalParameter, "looked", self._looked))
            stack.enter_context(patched(GlobalTensor, "dispatch", staticmethod(dispatch)))
            for module, name in PARAMETER_TRANSFORMS:
                if hasattr(module, name):
                    stack.enter_context(patched(module, name, self._given(getattr(module, name))))
            for owner, name, kind in PAST_PYTHON:
                stack.enter_context(patched(owner, name, kind(self._given(getattr(owner, name)))))
            stack.enter_context(patched(torch.autograd, "grad", self._given(torch.autograd.grad)))
            stack.enter_context(patched(torch.autograd.Function, "apply", classmethod(self._given(current_apply()))))
            stack.enter_context(patched(Optimizer, "zero_grad", self._zeroing(Optimizer.zero_grad, parameters_of)))
            stack.enter_context(patched(nn.Module, "zero_grad", self._zeroing(nn.Module.zero_grad, lambda module: [*module.parameters()])))
            for parameter in self._parameters.all():
                if type(parameter) is nn.Parameter:
                    parameter.__class__ = LocalParameter
            yield

    def end(self) -> None:
        """Restore the original class of parameters."""
        parameters: list[Any] = [parameter for parameter in self._parameters.all() if type(parameter) is LocalParameter]
        for parameter in parameters:
            parameter.__class__ = nn.Parameter

    def _looked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation on parameters."""
        is_other = threading.get_ident() != self._thread
        if is_other and not self.quiet.is_on and self._parameters.is_any_ahead:
            raise RuntimeError("A thread reads parameters, which differ between engines: leave out --sync-every.")
        if self.quiet.is_on or is_other:
            with quiet():
                return func(*args, **kwargs)
        name, access = name_of(func)
        if access and name in GRADIENT:
            return self._parameters.gradient(func, access, *args)
        found = local_parameters_in((args, kwargs), {}).values()
        self._parameters.look(found, lends=name in SHARE_MEMORY)
        with plain(found):
            return func(*args, **kwargs)

    def _given(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function`, to which PyTorch passes parameters without ``__torch_function__``, so that it gets averaged ones."""

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            found = local_parameters_in((args, kwargs), {}).values()
            if not found:
                return function(*args, **kwargs)
            self._parameters.look(found, lends=True)
            with plain(found):
                return function(*args, **kwargs)

        return called

    def _zeroing(self, original: Callable[..., None], of: Callable[[Any], list[Any]]) -> Callable[..., None]:
        """Wrap `original`, which zeroes gradients, so that this does not count as access."""

        @wraps(original)
        def zero_grad(self_: Any, set_to_none: bool = True) -> None:  # PyTorch's default
            parameters = of(self_)
            with plain(parameters):
                original(self_, set_to_none)
            if set_to_none:
                self._parameters.zeroed(parameters)

        return zero_grad
