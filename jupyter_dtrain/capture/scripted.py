"""What ``torch.jit`` has compiled, as PyTorch saves it, but with the very tensors that an optimizer has."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch


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
