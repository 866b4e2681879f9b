"""Tensors are pickled with gradient and hooks, which their own pickling drops, and without their autograd graph (`cut_graphs`)."""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..system.interpreter import unwarned
from .cut_graphs import grad_fn_name, is_leaf, without_graph


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array that shares memory with `tensor`, and is valid until the tensor is resized.

    ``tensor.numpy()`` is as fast, but afterwards PyTorch refuses to resize any tensor of that storage, which a cell or observer may need.
    """
    return np.from_dlpack(tensor)


def reduced_tensor(tensor: torch.Tensor) -> Any:
    """Return the reduce value of a tensor, ``NotImplemented`` if torch's own loses nothing."""
    if is_lazy(tensor):
        return type(tensor), (tensor.requires_grad, tensor.data.device, tensor.data.dtype)
    if not is_leaf(tensor):
        return without_graph, (tensor.detach(), tensor.grad if tensor.retains_grad else None, grad_fn_name(tensor))
    hooks, after = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    if tensor.grad is None and not hooks and not after:
        return NotImplemented
    with unwarned():  # torch warns about hooks
        reduced = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(reduced) != 2:
        return NotImplemented
    return (*reduced, (tensor.grad, hooks or None, after or None), None, None, _set_gradient)


def with_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return `tensor` with this gradient."""
    tensor.grad = gradient
    return tensor


def _set_gradient(tensor: torch.Tensor, state: tuple[torch.Tensor | None, Any, Any]) -> None:
    gradient, hooks, after = state
    if gradient is not None:
        tensor.grad = gradient
    if hooks:  # the dict itself, to which the hooks' handles refer
        tensor._backward_hooks = hooks
    if after:
        tensor._post_accumulate_grad_hooks = after


def set_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Set the state of an optimizer without the options that its class adds where a state of an older version lacks them."""
    options = [state.get("defaults", {}), *state.get("param_groups", ())]
    before = [set(of_group) for of_group in options]
    optimizer.__setstate__(state)
    for of_group, names in zip(options, before, strict=True):
        for name in of_group.keys() - names:
            del of_group[name]


# ``torch.jit`` modules and functions, as PyTorch saves them, but with the same tensor objects that an optimizer has.


def reduced_module(module: torch.jit.ScriptModule) -> tuple[Any, ...]:
    """Return the reduce value of a scripted or traced module."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return _load, (_saved(module),), tensors, None, None, _set_tensors


def reduced_function(function: torch.jit.ScriptFunction[Any, Any]) -> tuple[Any, ...]:
    """Return the reduce value of a scripted or traced function: scripted again if the reader has its source, else loaded as saved."""
    original = getattr(function, "_torchdynamo_inline", None)  # set for torch.compile
    is_scripted = getattr(function, "__qualname__", "") == "torch.jit.ScriptFunction"
    return _function, (original if is_scripted else None, _saved(function))


def methods_of(module: torch.jit.ScriptModule) -> frozenset[str]:
    """Return the instance attributes that cache called methods of a scripted module; they belong to this process."""
    return frozenset(name for name, value in module.__dict__.items() if isinstance(value, torch._C.ScriptMethod))


def _saved(compiled: Any) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(compiled, buffer)
    return buffer.getvalue()


def _load(saved: bytes) -> Any:
    return torch.jit.load(io.BytesIO(saved), map_location="cpu")


def _set_tensors(module: Any, tensors: dict[str, torch.Tensor]) -> None:
    parts = dict(module.named_modules())
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        parts[path]._c.setattr(last, tensor)


def _function(original: Callable[..., Any] | None, saved: bytes) -> Any:
    if original is not None:
        try:
            return torch.jit.script(original)
        except (OSError, RuntimeError):  # the source is not available, or uses an undefined name
            pass
    return _load(saved).forward


# ``torch.compile`` results are pickled as the original function and the settings (`operator_reducers`): compiled code belongs to a process.


# Custom operators (``torch.library.custom_op``): PyTorch's dispatcher has one per name and process (`operator_reducers`).
#
# The reader registers the operator in its own dispatcher, with the notebook's functions. It replaces an operator of the same name, as
# rerunning the operator's cell in the notebook does.


# Profiles of ``torch.profiler``: their tables and traces stay readable in another process.
#
# The object that holds the trace cannot be pickled, and returns its text only once. So the events are read from it, and the text is kept.

_PROFILES_PYTORCHS = "torch.autograd.profiler"
_LEVEL = 1  # compression level: even this shrinks a trace to a tenth


class Trace:
    """A profile's trace, in the place of PyTorch's own result object.

    Parameters
    ----------
    result : torch._C._autograd._ProfilerResult or None
    text : bytes, optional
        The compressed trace of a profile from another process.
    refused : str
        Why there is no text.
    """

    def __init__(self, result: Any, text: bytes | None = None, refused: str = "") -> None:
        self._result, self._text, self._refused = result, text, refused

    def save(self, path: str) -> None:
        """Write the trace as JSON for Chrome tracing and Perfetto; raise a `RuntimeError` if the result object has written it before."""
        self._read()
        if self._text is None:
            raise RuntimeError(self._refused)
        Path(path).write_bytes(zlib.decompress(self._text))

    def _read(self) -> None:
        if self._text is not None or self._refused:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            try:
                self._result.save(str(path))
            except RuntimeError as error:
                self._refused = str(error)
            else:
                self._text = zlib.compress(path.read_bytes(), _LEVEL)

    def __getattr__(self, name: str) -> Any:
        result = vars(self).get("_result")
        if result is None:
            raise AttributeError(f"a profile that was taken by another process has its events and its trace, and no {name!r}")
        return getattr(result, name)

    def __reduce__(self) -> Any:
        self._read()
        return Trace, (None, self._text, self._refused)


def reduced_profile(obj: Any) -> Any:
    """Replace the result object of a profile by a `Trace`, and return ``NotImplemented``, as torch's own pickling then suffices.

    Raises
    ------
    TypeError
        The profile is still recording.
    """
    if type(obj).__name__ != "profile" or type(obj) is not getattr(sys.modules.get(_PROFILES_PYTORCHS), "profile", None):
        return NotImplemented
    if not isinstance(obj.kineto_results, Trace):
        if obj.kineto_results is None and getattr(obj, "entered", False):
            raise TypeError("cannot pickle 'profile' object: it is being taken")
        with contextlib.suppress(RuntimeError):  # a profile for a trace only has no events
            _ = obj.function_events  # events are parsed on first access
        if obj.kineto_results is not None:
            obj.kineto_results = Trace(obj.kineto_results)
    return NotImplemented
