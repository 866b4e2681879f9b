"""A tensor goes with its gradient and its hooks, which its own way of pickling forgets, and without the graph that made it.

A graph stays in its process: a backward pass that comes to where it was cut off says so, and does not end there unnoticed.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ..system.interpreter import unwarned


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return an array of the numbers of `tensor`, in the same memory, which lives as long as nobody resizes the tensor.

    ``tensor.numpy()`` is as quick, but PyTorch then refuses to resize any tensor in that memory, for ever: as the cell may, or an observer.
    """
    return np.from_dlpack(tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a graph begins at `tensor`."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a part (of `split`, `unbind`) of what an optimizer has changed since: its values are there, its graph is not
        return False


def _computed_by(tensor: torch.Tensor) -> str:
    try:
        return type(tensor.grad_fn).__name__
    except RuntimeError:
        return "Invalid"  # as it is printed


def reduced_tensor(tensor: torch.Tensor) -> Any:
    """Return how a tensor reduces, ``NotImplemented`` where torch's own way leaves out nothing."""
    if is_lazy(tensor):
        return type(tensor), (tensor.requires_grad, tensor.data.device, tensor.data.dtype)
    if not is_leaf(tensor):
        return without_graph, (tensor.detach(), tensor.grad if tensor.retains_grad else None, _computed_by(tensor))
    hooks, after = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    if tensor.grad is None and not hooks and not after:
        return NotImplemented
    with unwarned():  # of the hooks
        reduced = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if len(reduced) != 2:
        return NotImplemented
    return (*reduced, (tensor.grad, list((hooks or {}).values()), list((after or {}).values())), None, None, _set_gradient)


def _set_gradient(tensor: torch.Tensor, state: tuple[torch.Tensor | None, list[Any], list[Any]]) -> None:
    gradient, hooks, after = state
    if gradient is not None:
        tensor.grad = gradient
    for hook in hooks:
        tensor.register_hook(hook)
    for hook in after:
        tensor.register_post_accumulate_grad_hook(hook)


class _GraphElsewhere(torch.autograd.Function):
    """In the place of a graph that stayed in another process."""

    @staticmethod
    def forward(_ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_ctx: Any, *_: torch.Tensor) -> None:
        raise RuntimeError(
            "This tensor's autograd graph is not available here: %%distribute sends only its value. "
            "Compute it and call backward() in the same cell."
        )


@cache
def _named(backward: str) -> Any:
    """Return it under the name of what a tensor was computed by there, which is shown with the tensor."""
    made: Any = type(_GraphElsewhere.__name__, (_GraphElsewhere,), {})
    made._backward_cls.__name__ = backward
    return made


def without_graph(tensor: torch.Tensor, retained: torch.Tensor | None, backward: str) -> torch.Tensor:
    """Return a detached tensor as one that was computed, by what has this name, with its gradient: a backward pass fails there."""
    with torch.enable_grad():
        result: torch.Tensor = _named(backward).apply(tensor.requires_grad_())
    if retained is not None:
        result.retain_grad()
        result.grad = retained
    return result


# What ``torch.jit`` has compiled, as PyTorch saves it, but with the very tensors that an optimizer has.


def reduced_module(module: torch.jit.ScriptModule) -> tuple[Any, ...]:
    """Return how a scripted or traced module reduces."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return _load, (_saved(module),), tensors, None, None, _set_tensors


def reduced_function(function: torch.jit.ScriptFunction[Any, Any]) -> tuple[Any, ...]:
    """Return how a scripted or traced function reduces: scripted again if its text is known there, else as what was saved of it."""
    original = getattr(function, "_torchdynamo_inline", None)  # by which torch.compile looks into it
    is_scripted = getattr(function, "__qualname__", "") == "torch.jit.ScriptFunction"
    return _function, (original if is_scripted else None, _saved(function))


def methods_of(module: torch.jit.ScriptModule) -> frozenset[str]:
    """Return the attributes that a scripted module has for the methods which were called: they belong to this process."""
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
        except (OSError, RuntimeError):  # its text is not here, or names a thing that is not
            pass
    return _load(saved).forward


# What ``torch.compile`` has made, written as what it was made from, and how: compiled code and its caches belong to one process.


# Operators that a notebook has made (``torch.library.custom_op``): PyTorch's dispatcher has one of each name in a process.
#
# The reader enters the operator in its own dispatcher, with the notebook's functions; where it has one of this name it takes its place, as
# it does where the notebook runs the operator's cell again.


# Profiles that ``torch.profiler`` has taken: their tables and their traces can be read where they were not taken.
#
# What holds the trace is PyTorch's own and cannot be pickled, and it gives its text once. So the events are read from it and its text
# is kept.

_PROFILES_PYTORCHS = "torch.autograd.profiler"
_LEVEL = 1  # of compression: a trace shrinks to a tenth even so


class Trace:
    """What a profile has recorded, in the place of PyTorch's own.

    Parameters
    ----------
    result : torch._C._autograd._ProfilerResult or None
    text : bytes, optional
        What there is of one of another process, compressed.
    refused : str
        Why that has no text.
    """

    def __init__(self, result: Any, text: bytes | None = None, refused: str = "") -> None:
        self._result, self._text, self._refused = result, text, refused

    def save(self, path: str) -> None:
        """Write the trace as JSON for Chrome's tracing and Perfetto, a `RuntimeError` where the result itself has written it before."""
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
    """Return how a profile reduces, ``NotImplemented`` for any other object.

    Raises
    ------
    TypeError
        It is being taken.
    """
    if type(obj).__name__ != "profile" or type(obj) is not getattr(sys.modules.get(_PROFILES_PYTORCHS), "profile", None):
        return NotImplemented
    if not isinstance(obj.kineto_results, Trace):
        if obj.kineto_results is None and getattr(obj, "entered", False):
            raise TypeError("cannot pickle 'profile' object: it is being taken")
        with contextlib.suppress(RuntimeError):  # who wants a trace only has no events
            _ = obj.function_events  # which are read when they are first asked for
        if obj.kineto_results is not None:
            obj.kineto_results = Trace(obj.kineto_results)
    return NotImplemented
